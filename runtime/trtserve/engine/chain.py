"""Chains in the scheduler's rounds: which sequences get one, how long, and what a failing drafter may cost.

A chain is drafted where no copy took the round. Nothing that the drafter does ends a request: where it raises, or
proposes what may not be verified, the round goes on without chains, and so do the rounds after it, twice as many after
each failure in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtserve.drafters.base import ChainDrafter, ChainRequest
from trtserve.engine.chain_cost import ChainGate
from trtserve.engine.rounds import checked_drafts
from trtserve.executor.base import StepInput, StepOutput

_log = logging.getLogger(__name__)

MAX_PAUSE = 64
"""Most rounds without chains after a failure of the drafter."""


class ChainTaker(Protocol):
    """A sequence of a round, as far as its chain is concerned. ``engine.sequence.Sequence`` is one."""

    @property
    def slot_index(self) -> int: ...

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and output so far."""
        ...

    @property
    def remaining(self) -> int:
        """Output tokens left in the budget."""
        ...


class ChainRounds:
    """The engine's one ``ChainDrafter``, guarded. ``gate`` None: chains always have their full length."""

    def __init__(self, drafter: ChainDrafter, num_drafts: int, vocab_size: int, gate: ChainGate | None) -> None:
        self._drafter = drafter
        self._num_drafts = num_drafts
        self._vocab_size = vocab_size
        self._gate = gate
        self._failures = self._pause = 0
        self._error_logged = False
        self._unsafe: set[int] = set()

    def begin(self, slot: int, keep: int) -> None:
        """A new sequence takes ``slot``; what the slot held of earlier text, but for ``keep`` tokens, is not its."""
        if self._gate is not None:
            self._gate.begin(slot)
        self._unsafe.discard(slot)
        if not self._guard("begin", lambda: self._drafter.begin(slot, keep)):
            # It may still hold another request's text there.
            self._unsafe.add(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._guard("copy_prefix", lambda: self._drafter.copy_prefix(source, target, length))

    def observe_prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        self._guard("observe_prefill", lambda: self._drafter.observe_prefill(slot, start, tokens))

    def observe_step(self, batch: StepInput, out: StepOutput) -> None:
        self._guard("observe_step", lambda: self._drafter.observe_step(batch, out))

    def draft(self, batch: Tokens[ChainTaker], copied: Tokens[int], most: int) -> list[tuple[int, NDArray[np.int32]]]:
        """The chains of a round: (place in the batch, drafts, at least one), for sequences without a copy.

        ``copied``: each sequence's drafts from copies, [B]. ``most``: drafts that each sequence has rows for.
        """
        if self._pause:
            self._pause -= 1
            return []
        most = min(most, self._num_drafts)
        places = [b for b, s in enumerate(batch) if not copied[b] and self._may_have(s, most)]
        if not places:
            return []
        limits = [min(most, batch[b].remaining - 1) for b in places]
        if self._gate is not None:
            takers = [(batch[b].slot_index, limit) for b, limit in zip(places, limits, strict=True)]
            context = sum(len(s.tokens) for s in batch) // len(batch)
            length = self._gate.length(len(batch), sum(copied), takers, context)
            if length == 0:
                return []
            limits = [min(limit, length) for limit in limits]
        wanted = [
            ChainRequest(batch[b].slot_index, batch[b].tokens, limit) for b, limit in zip(places, limits, strict=True)
        ]
        try:
            chains = self._checked(wanted, list(self._drafter.draft(wanted)))
        except Exception as e:
            self._failed("draft", e)
            self._pause = min(1 << min(self._failures - 1, 30), MAX_PAUSE)
            return []
        self._failures = 0
        return [(b, chain) for b, chain in zip(places, chains, strict=True) if len(chain)]

    def settle(self, slot: int, proposed: int, accepted: int) -> None:
        """``accepted`` of the chain of ``proposed`` drafts that ``slot``'s sequence verified were."""
        if self._gate is not None:
            self._gate.settle(slot, proposed, accepted)

    def close(self) -> None:
        self._guard("close", self._drafter.close)

    def _may_have(self, taker: ChainTaker, most: int) -> bool:
        return min(most, taker.remaining - 1) > 0 and taker.slot_index not in self._unsafe

    def _checked(self, wanted: Tokens[ChainRequest], chains: Tokens[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        if len(chains) != len(wanted):
            raise ValueError(f"{len(chains)} chains for {len(wanted)} sequences")
        return [
            checked_drafts(chain, self._vocab_size, least=0, most=request.limit)
            for request, chain in zip(wanted, chains, strict=True)
        ]

    def _guard(self, doing: str, call: Callable[[], None]) -> bool:
        """Whether the call went well."""
        try:
            call()
        except Exception as e:
            self._failed(doing, e)
            return False
        return True

    def _failed(self, doing: str, error: Exception) -> None:
        self._failures += 1
        if not self._error_logged:
            self._error_logged = True
            _log.error("the drafter failed in %s; rounds go on without its chains", doing, exc_info=error)
