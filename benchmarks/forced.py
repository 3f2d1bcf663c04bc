"""Forced output: every verify is computed for real, then its target tokens are taken from a written text.

This measures how fast a model that answers rightly would be, on a machine whose model is too small to do so. The
engine around it (drafting, rows, acceptance, settling, streaming) is the real one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtserve.executor.base import Executor, StepInput, StepOutput


class ForcedExecutor(Executor):
    """Wraps an executor. ``force`` sets the sequence (prompt and output) that decides targets; None: the model does."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._script: NDArray[np.int32] | None = None
        self.info = inner.info

    def force(self, sequence: Sequence[int] | None) -> None:
        """From now on take targets from ``sequence`` by position. One request at a time."""
        self._script = None if sequence is None else np.asarray(sequence, np.int32)

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        self._inner.prefill(slot, start, tokens)

    def step(self, batch: StepInput) -> StepOutput:
        out = self._inner.step(batch)
        if self._script is None:
            return out
        if len(batch.slots) != 1:
            raise ValueError("forced output is for one sequence at a time")
        rows = int(batch.num_rows[0])
        positions = int(batch.lengths[0]) + 1 + np.arange(rows)
        targets = self._script[np.minimum(positions, len(self._script) - 1)]
        drafts = batch.tokens[1:rows]
        wrong = np.flatnonzero(drafts != targets[: rows - 1])
        accepted = int(wrong[0]) if len(wrong) else rows - 1
        return out._replace(targets=targets, accepted=np.array([accepted], np.int32))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._inner.copy_prefix(source, target, length)

    def close(self) -> None:
        self._inner.close()
