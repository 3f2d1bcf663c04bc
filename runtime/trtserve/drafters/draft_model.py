"""``drafter: draft_model``: a smaller model of the same vocabulary drafts greedily, token after token.

Its executor has the main model's slots, and each slot remembers which tokens its keys and values belong to. Before a
chain those are compared with the sequence's own: what agrees stays, the rest is computed again, all of it (what a
copy's round committed, a rejected draft's replacement, a whole prompt) in one forward for all sequences. Then one
forward per place of the chain, again for all sequences that need one.

Drafts are the model's most likely tokens for sampled requests too. Acceptance is exact match with the target token, so
this decides how often a draft is right and never what is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtserve.drafters.base import ChainDrafter, ChainRequest, Opening
from trtserve.engine_dir import DRAFT_MODEL_DIR
from trtserve.executor.base import ExecutorError
from trtserve.settings import plan_draft_tiers

_NOTHING = np.empty(0, np.int32)
_NOTHING.flags.writeable = False


class NextTokens(Protocol):
    """A model that predicts: what is asked of the draft model's executor. ``TorchExecutor`` is one."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_packed_rows(self) -> int:
        """Most rows of one ``predict``, over all sequences."""
        ...

    def predict(
        self,
        slots: NDArray[np.int32],
        lengths: NDArray[np.int32],
        num_rows: NDArray[np.int32],
        tokens: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """The most likely token after each sequence's last row, int32 ``[B]``; -1 where no logit is finite."""
        ...

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...

    def close(self) -> None: ...


class _Held:
    """What one slot of the draft model holds."""

    __slots__ = ("checked", "length", "tokens")

    def __init__(self, positions: int) -> None:
        self.tokens = np.zeros(positions, np.int32)
        self.length = 0
        """Positions with keys and values, those of ``tokens[:length]``."""
        self.checked = 0
        """Leading tokens known to be the present sequence's own. Committed tokens never change, so only what lies
        behind them is ever compared."""

    def align(self, tokens: NDArray[np.int32]) -> int:
        """Keep what is ``tokens``' beginning. Returns how many of them, the last at least, are still to compute."""
        start = min(self.checked, self.length)
        end = min(self.length, len(tokens) - 1)
        differs = np.flatnonzero(self.tokens[start:end] != tokens[start:end])
        self.length = start + int(differs[0]) if len(differs) else max(start, end)
        self.length = min(self.length, len(tokens) - 1)
        self.checked = self.length
        return len(tokens) - self.length

    def append(self, tokens: NDArray[np.int32] | int) -> None:
        end = self.length + (1 if isinstance(tokens, int) else len(tokens))
        self.tokens[self.length : end] = tokens
        self.length = end


class DraftModel(ChainDrafter):
    """Chains from a second model. ``vocab_size`` is the main model's; a draft outside it is never proposed.

    Where a prompt is longer than one forward takes, the drafter catches up over several rounds, without chains for
    that sequence meanwhile, so that no round waits for more than one forward of ``max_packed_rows`` rows.
    """

    def __init__(self, model: NextTokens, *, slots: int, positions: int, vocab_size: int) -> None:
        if model.max_packed_rows < 2 * slots:
            raise ValueError(
                f"the draft model's forwards hold {model.max_packed_rows} rows; {slots} slots need {2 * slots}"
            )
        self._model = model
        self._known = min(model.vocab_size, vocab_size)
        self._held = [_Held(positions) for _ in range(slots)]

    def begin(self, slot: int, keep: int) -> None:
        held = self._held[slot]
        held.length, held.checked = min(held.length, keep), 0

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        theirs, ours = self._held[source], self._held[target]
        length = min(length, theirs.length)
        if length <= ours.length:
            return
        ours.length = ours.checked = 0
        self._model.copy_prefix(source, target, length)
        ours.append(theirs.tokens[:length])

    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        chains = np.empty((len(wanted), max((w.limit for w in wanted), default=0)), np.int32)
        counts = [0] * len(wanted)
        going, predicted = self._catch_up(wanted)
        while True:
            extended = []
            for i, token in zip(going, predicted.tolist(), strict=True):
                if not 0 <= token < self._known:
                    continue  # no finite logit, or a token that only this model has: the chain ends here
                chains[i, counts[i]] = token
                counts[i] += 1
                if counts[i] < wanted[i].limit:
                    extended.append(i)
            if not extended:
                return [chains[i, :n] if n else _NOTHING for i, n in enumerate(counts)]
            going = extended
            last = np.array([chains[i, counts[i] - 1] for i in going], np.int32)
            predicted = self._forward(wanted, going, [1] * len(going), last)
            for i, token in zip(going, last.tolist(), strict=True):
                self._held[wanted[i].slot].append(token)

    def close(self) -> None:
        self._model.close()

    def _catch_up(self, wanted: Sequence[ChainRequest]) -> tuple[list[int], NDArray[np.int32]]:
        """Compute what the slots lack of the sequences' tokens, in one forward: of those that lack least first, and of
        the first that does not fit whole, its beginning. Returns the sequences that are complete, and the token that
        follows each."""
        lacking = [(self._held[w.slot].align(w.tokens), i) for i, w in enumerate(wanted)]
        room = self._model.max_packed_rows
        rows: list[int] = []
        parts: list[NDArray[np.int32]] = []
        taken: list[int] = []
        for lack, i in sorted(lacking):
            if room == 0:
                break
            start = self._held[wanted[i].slot].length
            part = wanted[i].tokens[start : start + min(lack, room)]
            if int(part.max()) >= self._model.vocab_size:
                continue  # a token that the draft model has no embedding for: this sequence goes on without chains
            taken.append(i)
            rows.append(len(part))
            parts.append(part)
            room -= len(part)
        if not taken:
            return [], _NOTHING
        predicted = self._forward(wanted, taken, rows, np.concatenate(parts))
        for i, part in zip(taken, parts, strict=True):
            held = self._held[wanted[i].slot]
            held.append(part)
            held.checked = held.length
        complete = [k for k, i in enumerate(taken) if self._held[wanted[i].slot].length == len(wanted[i].tokens)]
        return [taken[k] for k in complete], predicted[complete]

    def _forward(
        self, wanted: Sequence[ChainRequest], which: Sequence[int], rows: Sequence[int], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Keys and values are written behind what each slot holds, which the caller notes only when this returned."""
        slots = np.array([wanted[i].slot for i in which], np.int32)
        lengths = np.array([self._held[wanted[i].slot].length for i in which], np.int32)
        return self._model.predict(slots, lengths, np.array(rows, np.int32), tokens)


def open_drafter(opening: Opening) -> DraftModel:
    """The draft model of an engine directory, on the main model's device. Raises ExecutorError."""
    from trtserve.executor.torch import TorchExecutor

    manifest = opening.manifest
    if manifest.draft_model is None:
        raise ExecutorError(f"{opening.engine_dir}: its drafter is draft_model, but it holds none. Rebuild the engine.")
    executor = TorchExecutor.load_weights(
        opening.engine_dir / DRAFT_MODEL_DIR,
        manifest.draft_model.model,
        manifest.limits,
        plan_draft_tiers(manifest.limits),
        device=opening.device or "cpu",
        threads=opening.threads,
    )
    return DraftModel(
        executor,
        slots=manifest.limits.max_batch_size,
        positions=manifest.limits.max_seq_len,
        vocab_size=manifest.model.vocab_size,
    )
