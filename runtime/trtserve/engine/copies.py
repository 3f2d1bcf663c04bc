"""Copies in the scheduler's rounds: which sequences get one, and what a failing drafter may cost.

Nothing that the drafter does ends a request: where it raises, or proposes what may not be verified, the sequence that
it concerned goes on without copies, and the others as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.drafting import Drafter, Proposal
from trtserve.engine.protocol import Scope
from trtserve.engine.rounds import Drafts, checked_drafts
from trtserve.engine.sequence import Sequence
from trtserve.executor.base import ExecutorInfo
from trtserve.settings import PromptLookup

_log = logging.getLogger(__name__)


class CopyRounds:
    """The engine's one ``Drafter``, guarded; None: there are no copies.

    ``lookup`` None: the drafter follows sequences and proposes nothing. ``scope_name`` names a request's partition of
    the shared cache; None: nothing is copied from other requests, or kept for them.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        lookup: PromptLookup | None,
        info: ExecutorInfo,
        scope_name: Callable[[Scope], str] | None,
    ) -> None:
        self.drafter = drafter
        self._lookup = lookup
        self._info = info
        self._scope_name = scope_name
        self._skipped = 0
        self._error_logged = False

    def start(self, sequence: Sequence) -> None:
        """A sequence was admitted. One that asks for no lookup has no copies."""
        request = sequence.request
        if self.drafter is None or not request.lookup:
            return
        scope = None if self._scope_name is None else self._scope_name(request.scope)
        try:
            sequence.drafter = self.drafter.start(sequence.prompt, prediction=sequence.prediction, scope=scope)
            self._note(sequence)
        except Exception as e:
            self._drop(sequence, "start", e)

    def draft(self, batch: Tokens[Sequence]) -> list[Drafts | None]:
        """A copy for each sequence that has one. [B]"""
        copies: list[Drafts | None] = [None] * len(batch)
        most = self.most_drafts(len(batch))
        if self.drafter is None or most < 1:
            return copies
        takers = [b for b, s in enumerate(batch) if s.drafter is not None and s.remaining > 1]
        if not takers:
            return copies
        try:
            proposals = self._propose(self.drafter, [batch[b] for b in takers], most, len(batch))
        except Exception as e:
            self._log_error("propose", e)
            proposals = self._propose_singly(self.drafter, [batch[b] for b in takers], most, len(batch))
        for b, proposal in zip(takers, proposals, strict=True):
            if proposal is None or proposal.source is None:
                continue
            try:
                limit = min(most, batch[b].remaining - 1)
                drafts = checked_drafts(proposal.tokens, self._info.vocab_size, least=1, most=limit)
                copies[b] = Drafts(drafts, proposal.source)
            except Exception as e:
                self._drop(batch[b], "propose", e)
        return copies

    def most_drafts(self, batch: int) -> int:
        """Most drafts of a copy in a round of ``batch`` sequences: the settings' limit within the tier's rows."""
        return 0 if self._lookup is None else min(self._lookup.most_drafts(batch), self._info.max_rows(batch) - 1)

    def settle(self, sequence: Sequence, drafts: Drafts | None, accepted: int, committed: NDArray[np.int32]) -> None:
        """A round of the sequence kept ``committed`` tokens, ``accepted`` of its drafts among them."""
        if sequence.drafter is None:
            return
        try:
            if drafts is not None and drafts.source != "model":
                sequence.drafter.settle(accepted)
            sequence.drafter.observe(committed)
            self._note(sequence)
        except Exception as e:
            self._drop(sequence, "settle", e)

    def finish(self, sequence: Sequence, *, ended: bool) -> None:
        """The sequence is over. ``ended``: it came to its own end, so that later requests may copy from it."""
        if self.drafter is not None and sequence.drafter is not None:
            store = ended and self._scope_name is not None
            self._guard("finish", partial(self.drafter.finish, sequence.drafter, store=store))
            sequence.drafter = None

    def take_skipped(self) -> int:
        """Rounds in which copies were held back, since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped

    def _propose(self, drafter: Drafter, takers: Tokens[Sequence], most: int, batch: int) -> Tokens[Proposal | None]:
        limits = np.array([min(most, s.remaining - 1) for s in takers], np.int32)
        proposals = drafter.propose([s.drafter for s in takers if s.drafter is not None], limits, batch - len(takers))
        if len(proposals) != len(takers):
            raise ValueError(f"{len(proposals)} proposals for {len(takers)} sequences")
        for sequence in takers:
            self._note(sequence)
        return proposals

    def _propose_singly(
        self, drafter: Drafter, takers: Tokens[Sequence], most: int, batch: int
    ) -> list[Proposal | None]:
        """After a failed call for all: find out whose it was. That one goes on without copies."""

        def propose_one(sequence: Sequence) -> Proposal | None:
            try:
                assert sequence.drafter is not None
                sequence.drafter.abandon()
                return self._propose(drafter, [sequence], most, batch)[0]
            except Exception as e:
                self._drop(sequence, "propose", e)
                return None

        return [propose_one(sequence) for sequence in takers]

    def _note(self, sequence: Sequence) -> None:
        """Keep what the metrics show of a drafter, so that reading them never touches it from another thread."""
        drafter = sequence.drafter
        if drafter is not None:
            sequence.window, sequence.backing_off = drafter.window, drafter.backing_off
            skipped = drafter.rounds_skipped
            self._skipped += skipped - sequence.rounds_skipped
            sequence.rounds_skipped = skipped

    def _drop(self, sequence: Sequence, doing: str, error: Exception) -> None:
        """The drafter failed for one sequence: it goes on without copies."""
        self._log_error(doing, error)
        if self.drafter is not None and sequence.drafter is not None:
            self._guard("finish", partial(self.drafter.finish, sequence.drafter, store=False))
        sequence.drafter = None

    def _guard(self, doing: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as e:
            self._log_error(doing, e)

    def _log_error(self, doing: str, error: Exception) -> None:
        if not self._error_logged:
            self._error_logged = True
            _log.error("the drafter failed in %s; sequences go on without copies", doing, exc_info=error)
