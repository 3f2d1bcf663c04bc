"""The contract between the scheduler and whatever drafts chains: a draft model, a head over the main model's states.

A *chain* is what a drafter of its own proposes for a sequence's next tokens, in the rounds that have no copy. The
scheduler's view is tokens alone, and they are the only truth: ``draft`` is given every token of a sequence, and the
drafter works out by itself what of them it has not seen yet. So nothing has to be told to it when drafts are rejected,
when a copy took the round, when a sequence ends early, or when an earlier call of its own failed half way.

What it must be told is whose text a slot holds (``begin``, ``copy_prefix``), because no request may profit from
another's keys and values unless the main cache's rules allow it. The two ``observe`` calls are for heads that read
the main model's states; a drafter that needs only tokens leaves them alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtserve.engine_dir import Manifest
from trtserve.executor.base import Executor, StepInput, StepOutput


class ChainRequest(NamedTuple):
    """One sequence that has no copy this round."""

    slot: int
    """The main model's slot. The drafter has as many, of the same length."""
    tokens: NDArray[np.int32]  # [n] prompt and output so far, the last committed token included; only read
    limit: int
    """Most drafts, at least 1. ``n - 1 + limit`` positions fit the slot."""


class ChainDrafter(ABC):
    """Drafts chains. One thread calls it. Whatever it raises, the scheduler goes on without chains and asks again
    later, so a call that fails must leave the drafter able to answer the next."""

    @abstractmethod
    def begin(self, slot: int, keep: int) -> None:
        """A new sequence takes ``slot``. Of what the slot held, its first ``keep`` tokens at most are its own too;
        the rest must not be used again."""

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """The sequence in ``target`` shares its first ``length`` tokens with what slot ``source`` holds, and may use
        its keys and values. Doing nothing is allowed."""

    @abstractmethod
    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        """A chain for each sequence, int32 ``[n]`` with 0 <= n <= its limit, in the order asked.

        An empty chain is no failure: a drafter that lags behind a long prompt may catch up over several rounds, so
        that it does not hold up the sequences beside it.
        """

    def observe_prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:  # noqa: B027 (optional)
        """The main model has just prefilled ``tokens`` at ``start`` of ``slot``."""

    def observe_step(self, batch: StepInput, out: StepOutput) -> None:  # noqa: B027 (optional)
        """The main model has just verified ``batch``; of a sequence's rows 0 to ``accepted`` stay."""

    @abstractmethod
    def close(self) -> None:
        """Free what the drafter holds. A second call does nothing."""


@dataclass(frozen=True)
class Opening:
    """What a drafter's module may read when it is opened: ``open_drafter(opening) -> ChainDrafter``."""

    engine_dir: Path
    manifest: Manifest
    executor: Executor
    """The main model's. A drafter never computes on it, and never closes it."""
    device: str | None = None
    threads: int | None = None
