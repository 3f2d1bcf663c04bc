"""A sequence: one request's tokens and everything that is known about them. It answers for itself, so the scheduler
never does arithmetic on its fields.

Where its keys and values are: of a sequence's first ``n`` tokens the slot holds all but the last, whose row is the
first of the next round. A round that keeps k new tokens therefore moves ``length`` on by k, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.drafting import SequenceDrafter
from trtserve.engine.emit import TextStream
from trtserve.engine.generation import LocalGeneration
from trtserve.engine.protocol import (
    SOURCES,
    FinishReason,
    GenerationRequest,
    GenerationStats,
    Scope,
    Source,
    SourceStats,
)
from trtserve.engine.slots import Slot
from trtserve.sampling import SamplingState

_FIRST_OUTPUT_CAPACITY = 256


@dataclass(frozen=True)
class Ending:
    """Why a sequence ends, and the stop string or token that ended it."""

    reason: FinishReason
    stop: str | int | None = None


class Sequence:
    """One request on its way through the engine. Created by the caller of ``submit``, then the scheduler's alone."""

    def __init__(
        self, request: GenerationRequest, prompt: NDArray[np.int32], prediction: NDArray[np.int32], budget: int
    ) -> None:
        self.request = request
        self.prediction = prediction
        self.params = request.params
        self.scope: Scope = request.scope
        self.prompt_len = len(prompt)
        self.budget = budget
        """Most output tokens: what was asked for, or what the context has room for."""
        self._tokens = np.empty(len(prompt) + min(budget, _FIRST_OUTPUT_CAPACITY), np.int32)
        self._tokens[: len(prompt)] = prompt
        self.num_tokens = len(prompt)

        self.slot: Slot | None = None
        self.prefilled = 0
        """Leading prompt tokens whose keys and values are in the slot."""
        self.cached_tokens = 0
        self.prefill_begun = False
        self.done = False

        # Given when the request is submitted or admitted; see LocalEngine.
        self.generation: LocalGeneration
        self.sampling: SamplingState
        self.text: TextStream
        self.drafter: SequenceDrafter | None = None
        self.end_tokens: frozenset[int] = frozenset()

        self.rounds = 0
        self.proposed = dict.fromkeys(SOURCES, 0)
        self.accepted = dict.fromkeys(SOURCES, 0)
        self.rounds_skipped = 0
        self.window = 0
        self.backing_off = False

        self.submitted_at = perf_counter()
        self.admitted_at: float | None = None
        self.prefill_time = 0.0
        self.first_round_at: float | None = None
        self.last_round_at = 0.0

    @property
    def prompt(self) -> NDArray[np.int32]:
        return self._tokens[: self.prompt_len]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and output so far, int32 ``[num_tokens]``, a view."""
        return self._tokens[: self.num_tokens]

    @property
    def slot_index(self) -> int:
        """The slot's number. Only for a sequence that has one."""
        assert self.slot is not None
        return self.slot.index

    @property
    def num_output(self) -> int:
        return self.num_tokens - self.prompt_len

    @property
    def remaining(self) -> int:
        """Output tokens left in the budget."""
        return self.budget - self.num_output

    @property
    def to_prefill(self) -> int:
        """Prompt tokens left to prefill; the last one is never prefilled, it is row 0 of the first round."""
        return self.prompt_len - 1 - self.prefilled

    @property
    def length(self) -> int:
        """Tokens whose keys and values are in the slot and verified."""
        return self.prefilled + self.num_output

    @property
    def committed(self) -> NDArray[np.int32]:
        """int32 ``[length]``, a view."""
        return self._tokens[: self.length]

    @property
    def last_token(self) -> int:
        return int(self._tokens[self.num_tokens - 1])

    def unprefilled(self, most: int) -> NDArray[np.int32]:
        """The next at most ``most`` prompt tokens to prefill."""
        return self._tokens[self.prefilled : min(self.prefilled + most, self.prompt_len - 1)]

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Commit output tokens, in the sequence and in its sampling state."""
        end = self.num_tokens + len(tokens)
        if end > len(self._tokens):
            room = np.empty(min(2 * end, self.prompt_len + self.budget), np.int32)
            room[: self.num_tokens] = self._tokens[: self.num_tokens]
            self._tokens = room
        self._tokens[self.num_tokens : end] = tokens
        self.num_tokens = end
        self.sampling.commit(tokens)

    def walk(self, tokens: Tokens[int], source: Source | None, accepted: int) -> tuple[int, Ending | None]:
        """Read a round's tokens in order, adding their text, up to the first that ends the sequence.

        The first ``accepted`` tokens are drafts of ``source``, the rest the model's own choice. Returns how many are
        kept and the ending, if one of them was it. Nothing is committed yet.
        """
        params, first = self.params, self.num_output
        end_tokens, stop_tokens = self.end_tokens, params.stop_token_ids
        limit = min(len(tokens), self.budget - first)
        kept, ending = limit, None
        if end_tokens or stop_tokens:
            for i in range(limit):
                if tokens[i] in end_tokens or tokens[i] in stop_tokens:
                    kept, ending = i + 1, Ending("stop", tokens[i])
                    break
        spoken = kept
        if ending is not None and not (
            params.include_stop_str_in_output and ending.stop in stop_tokens and ending.stop not in end_tokens
        ):
            spoken -= 1  # An end token has no text.
        if self.text.has_stops:
            for i in range(spoken):
                stop = self.text.push(tokens[i : i + 1], source if i < accepted else None, self._may_stop(first + i))
                if stop is not None:
                    return i + 1, Ending("stop", stop)
        else:
            copied = min(accepted, spoken)
            if copied:
                self.text.push(tokens[:copied], source)
            if spoken > copied:
                self.text.push(tokens[copied:spoken], None)
        if ending is None and first + kept >= self.budget:
            ending = Ending("length")
        if ending is not None and (stop := self.text.finish(self._may_stop(first + kept - 1))) is not None:
            ending = Ending("stop", stop)
        return kept, ending

    def stats(self) -> GenerationStats:
        now = perf_counter()
        return GenerationStats(
            prompt_tokens=self.prompt_len,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.num_output,
            rounds=self.rounds,
            sources={s: SourceStats(self.proposed[s], self.accepted[s]) for s in SOURCES},
            rounds_skipped=self.rounds_skipped,
            queue_time=(now if self.admitted_at is None else self.admitted_at) - self.submitted_at,
            prefill_time=self.prefill_time,
            decode_time=0.0 if self.first_round_at is None else self.last_round_at - self.first_round_at,
            window=self.window,
        )

    def _may_stop(self, index: int) -> bool:
        """Whether output token ``index`` may complete a stop string: not while ``min_tokens`` are not out."""
        return index >= self.params.min_tokens
