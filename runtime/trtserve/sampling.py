"""Sampling: what a request may ask for, and the per-sequence state that verify rows are sampled with.

The rule (one rule for every target): row i's logits, after processing that depends only on the sequence's history and
the drafts before row i, give one *target token*. Greedy takes the highest logit, the lowest token on a tie. Otherwise
the token comes from one random number drawn from a counter-based generator keyed by (seed, position), so it does not
depend on how many rows the round had: seeded text is the same with lookup on and off.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from trtplugins import sampling_arrays

TokenId = Annotated[int, Field(ge=0)]

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_BIASES = 1024


class SamplingParams(BaseModel):
    """What a request asks of sampling and of stopping. Ranges are enforced here, for HTTP and Python alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(default=None, ge=1, description="output tokens; null: up to the context's end")
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False, description="0 is greedy")
    top_k: int = Field(default=0, ge=0, description="keep the k most likely tokens; 0 keeps all, as does -1")
    top_p: float = Field(default=1.0, gt=0, le=1, description="keep the smallest set of at least this probability")
    min_p: float = Field(default=0.0, ge=0, le=1, description="drop tokens below this share of the most likely one's")
    repetition_penalty: float = Field(
        default=1.0, ge=0.01, le=100, description="of prompt and output tokens; 1 is off, below 1 favours repetition"
    )
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, description="once per token already in the output")
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, description="per occurrence in the output")
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default={}, max_length=MAX_BIASES, description="added to a token's logit; -100 bans it"
    )
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 64, description="null draws one")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), max_length=MAX_STOPS, fail_fast=True)
    stop_token_ids: tuple[TokenId, ...] = Field(default=(), max_length=64, fail_fast=True)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0, description="output tokens before an end or stop token may be chosen")
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description="alternatives per token; null: none")

    @field_validator("top_k", mode="before")
    @classmethod
    def _all_tokens(cls, top_k: object) -> object:
        # vLLM's older way to say it, which many of its clients still send.
        return 0 if type(top_k) is int and top_k == -1 else top_k

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


#: ``SamplingState.counts`` bit that marks a token of the prompt; the bits below it count output occurrences.
PROMPT_BIT = np.int32(sampling_arrays.PROMPT_BIT)


@dataclass
class SamplingState:
    """One sequence's sampling state. The scheduler owns and commits it; an executor and its kernels only read it.

    ``counts`` is None unless the request has penalties: int32 ``[vocab_size]``, ``PROMPT_BIT`` set for tokens of the
    prompt, the lower bits counting the token in the output so far. ``ban_tokens`` must not be chosen while fewer than
    ``min_tokens`` tokens are out: row i of a round bans them when ``num_output + i < params.min_tokens``.
    """

    params: SamplingParams
    seed: int
    """0 to 2**64 - 1."""
    prompt_len: int
    num_output: int = 0
    counts: NDArray[np.int32] | None = None
    bias_tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    bias_values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    ban_tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @classmethod
    def start(
        cls, params: SamplingParams, prompt: NDArray[np.int32], vocab_size: int, end_tokens: tuple[int, ...]
    ) -> SamplingState:
        """The state of a sequence that has only its prompt. ``end_tokens``: what ``min_tokens`` holds back.

        Raises ValueError for a bias or stop token outside the vocabulary.
        """
        for name, tokens in (("logit_bias", tuple(params.logit_bias)), ("stop_token_ids", params.stop_token_ids)):
            if outside := [t for t in tokens if t >= vocab_size]:
                raise ValueError(f"{name}: token {outside[0]} is out of range; allowed: 0 to {vocab_size - 1}")
        counts = None
        if params.has_penalties:
            counts = np.zeros(vocab_size, np.int32)
            counts[prompt] = PROMPT_BIT
        bias = sorted(params.logit_bias.items())
        seed = secrets.randbits(64) if params.seed is None else params.seed % (1 << 64)
        return cls(
            params=params,
            seed=seed,
            prompt_len=len(prompt),
            counts=counts,
            bias_tokens=np.array([t for t, _ in bias], np.int32),
            # The API's documented meaning of the extremes: -100 is a ban, not a very small probability.
            bias_values=np.array([-np.inf if v <= -100 else v for _, v in bias], np.float32),
            ban_tokens=np.array(sorted(set(end_tokens)), np.int32) if params.min_tokens else np.empty(0, np.int32),
        )

    @property
    def position(self) -> int:
        """The position of the token that row 0 of the next round chooses: the random generator's counter."""
        return self.prompt_len + self.num_output

    @property
    def plain(self) -> bool:
        """Whether the target token is simply the highest raw logit."""
        return self.params.greedy and self.counts is None and not len(self.bias_tokens) and not self.bans_left

    @property
    def bans_left(self) -> int:
        """Rows of the next round, from row 0, in which ``ban_tokens`` are banned."""
        return max(self.params.min_tokens - self.num_output, 0) if len(self.ban_tokens) else 0

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """Record tokens that were emitted."""
        self.num_output += len(tokens)
        if self.counts is not None:
            np.add.at(self.counts, tokens, np.int32(1))
