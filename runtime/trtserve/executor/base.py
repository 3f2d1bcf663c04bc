"""The step contract between the scheduler and whatever computes the model.

The scheduler knows no framework; an executor knows no request. A batch of (slot, length, rows, sampling state) goes
in; target tokens, accepted counts and, where asked for, log-probabilities come out. Every array is NumPy on the host.

How a sequence lives in a slot
    A slot's KV cache holds the keys and values of the sequence's first ``length`` tokens. A new sequence's prompt,
    except its last token, goes through ``prefill``. From then on every round puts through ``step`` the *last committed
    token* (whose keys and values are not in the cache yet) and the drafts after it. ``step`` writes keys and values
    for all of those rows at positions ``length``, ``length + 1``, ...; after it the caller's new length is
    ``length + 1 + accepted``: the row of the last committed token and of each accepted draft stay, the rest are
    garbage that later rows overwrite. Nothing else rewinds a slot: the caller's ``length`` is the only truth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtserve.sampling import SamplingState
from trtserve.settings import Tier

MAX_THREADS = 256
"""CPU threads of one forward, at most."""


class ExecutorError(Exception):
    """The executor cannot be used (no device, wrong plan, out of memory). The message says what is missing."""


@dataclass(frozen=True)
class ExecutorInfo:
    """What an executor can hold. Fixed for its life."""

    max_batch_size: int
    """Slots, numbered 0 to ``max_batch_size - 1``."""
    max_seq_len: int
    """Positions per slot."""
    prefill_chunk: int
    """Most tokens of one ``prefill`` call."""
    vocab_size: int
    tiers: tuple[Tier, ...]
    exact: bool
    """Whether a row's logits depend on nothing but its own sequence: not the row count, not the rest of the batch."""
    device: str

    def max_rows(self, batch: int) -> int:
        """Most rows each of ``batch`` sequences may put through one ``step``, by the tiers built. 0: too many."""
        return max((t.rows for t in self.tiers if t.name != "prefill" and batch <= t.batch), default=0)


class StepInput(NamedTuple):
    """One verify. B sequences, each in its own slot; rows are packed, sequence after sequence."""

    slots: NDArray[np.int32]  # [B] distinct
    lengths: NDArray[np.int32]  # [B] tokens whose K/V the slot holds; row i of sequence b is at position lengths[b] + i
    num_rows: NDArray[np.int32]  # [B] at least 1: the last committed token, then num_rows - 1 drafts
    tokens: NDArray[np.int32]  # [sum(num_rows)]
    sampling: Sequence[SamplingState]  # [B] read, never changed: the caller commits what it keeps

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[B + 1] where each sequence's rows start in the packed arrays."""
        return np.concatenate(([0], np.cumsum(self.num_rows, dtype=np.int64)))


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one emitted position, from the model's logits before any processing."""

    chosen: float
    top_tokens: NDArray[np.int32]  # [n] by descending log-probability, ties by ascending token
    top_values: NDArray[np.float32]  # [n]


class StepOutput(NamedTuple):
    """What a verify decided. Targets are packed like the input's rows."""

    targets: NDArray[np.int32]  # [sum(num_rows)] the token after row i, for rows 0 to accepted; -1: failed row
    accepted: NDArray[np.int32]  # [B] drafts that equal the target before them, counted up to the first that differs
    failed: NDArray[np.bool_]  # [B] the row that decides the next token has no target, or this one alone failed: end it
    logprobs: Sequence[Sequence[TokenLogprobs] | None]  # [B] accepted + 1 entries where asked for


class Executor(ABC):
    """Runs a model. One thread calls it; it may use others inside. Implementations differ in device, not in meaning."""

    info: ExecutorInfo

    @abstractmethod
    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        """Write keys and values of ``tokens`` at positions ``start``, ``start + 1``, ... of ``slot``.

        Positions before ``start`` must be in the slot already. At most ``info.prefill_chunk`` tokens, int32 ``[n]``,
        n >= 1. Computes no logits.
        """

    @abstractmethod
    def step(self, batch: StepInput) -> StepOutput:
        """One verify forward, and acceptance. Writes K/V for every row; changes nothing of the input.

        ``num_rows`` must fit ``info.max_rows(B)`` and ``lengths + num_rows`` must fit ``info.max_seq_len``.
        """

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of the first ``length`` positions of slot ``source`` into slot ``target``."""

    @abstractmethod
    def close(self) -> None:
        """Free what the executor holds. The executor is unusable afterwards; a second call does nothing."""
