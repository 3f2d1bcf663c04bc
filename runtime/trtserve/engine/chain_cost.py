"""Whether a chain pays: drafts and a wider verify cost time, accepted drafts save rounds.

One rule, from measured forwards and counted acceptances alone, so the same requests in the same order always give the
same decisions. A round of B sequences that each draft a chain of L is expected to emit B + the sum of their expected
acceptances, and takes one verify and L draft forwards; the L with the most tokens per second wins, 0 among them. A
sequence's drafts are taken to be accepted with one probability each, given that those before were:
p + p^2 + ... + p^L are expected of a chain of L. p is counted per sequence, starting from what all sequences had.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtserve.engine_dir import Manifest
from trtserve.lookup.cost import ForwardCost, read_curve

PROBE_EVERY = 32
"""Rounds without a chain after which one draft is tried, so that an estimate that turned out low can recover. Twice as
many after each trial in vain: in a new sequence it costs a forward over the whole prompt."""
MAX_PROBE_EVERY = 1024

_OWN_DECAY = 0.95
_ALL_DECAY = 0.998
_PRIOR = (2.0, 1.0)
_PRIOR_WEIGHT = 4.0


class Odds:
    """Drafts accepted and chains cut short, older ones counting less."""

    __slots__ = ("_decay", "cut", "hits")

    def __init__(self, decay: float, hits: float = 0.0, cut: float = 0.0) -> None:
        self._decay, self.hits, self.cut = decay, hits, cut

    def add(self, proposed: int, accepted: int) -> None:
        self.hits = self.hits * self._decay + accepted
        self.cut = self.cut * self._decay + (accepted < proposed)

    def probability(self, prior: float = 0.0, weight: float = 0.0) -> float:
        """That a draft is accepted where those before it were."""
        return (self.hits + weight * prior) / (self.hits + self.cut + weight)


class ChainGate:
    """How long a round's chains are."""

    def __init__(self, verify: ForwardCost, draft: ForwardCost, slots: int) -> None:
        self._verify, self._draft = verify, draft
        self._all = Odds(_ALL_DECAY, *_PRIOR)
        self._own = [Odds(_OWN_DECAY) for _ in range(slots)]
        self._idle = 0
        self._probe_after = PROBE_EVERY
        self.rounds_held_back = 0

    @classmethod
    def of(cls, manifest: Manifest, device: str) -> ChainGate | None:
        """The gate of an engine whose forwards were measured on the kind of device that runs it; None: no curves."""
        record = manifest.draft_model
        curves = (manifest.cost_curve, None if record is None else record.cost_curve)
        kind = device.partition(":")[0]
        verify, draft = (
            None if curve is None or curve.device.partition(":")[0] != kind else read_curve(curve) for curve in curves
        )
        return None if verify is None or draft is None else cls(verify, draft, manifest.limits.max_batch_size)

    def begin(self, slot: int) -> None:
        self._own[slot] = Odds(_OWN_DECAY)

    def settle(self, slot: int, proposed: int, accepted: int) -> None:
        """``accepted`` of a chain of ``proposed`` were."""
        if self._idle >= self._probe_after:
            self._idle, self._probe_after = 0, min(2 * self._probe_after, MAX_PROBE_EVERY)
        self._own[slot].add(proposed, accepted)
        self._all.add(proposed, accepted)

    def length(self, batch: int, copied: int, takers: Sequence[tuple[int, int]], context: int) -> int:
        """The best length, 0 where no chain pays. ``takers``: slot and limit of each sequence that may have one, of a
        round of ``batch`` sequences in which ``copied`` drafts are copies already; ``context``: tokens in a slot."""
        prior = self._all.probability()
        odds = [(self._own[slot].probability(prior, _PRIOR_WEIGHT), limit) for slot, limit in takers]
        best, best_rate = 0, batch / self._verify.seconds(batch, -(-(batch + copied) // batch), context)
        expected, drafting, rows = float(batch), 0.0, batch + copied
        for length in range(1, max(limit for _, limit in odds) + 1):
            going = [p for p, limit in odds if length <= limit]
            expected += sum(p**length for p in going)
            drafting += self._draft.seconds(len(going), 1, context)
            rows += len(going)
            rate = expected / (self._verify.seconds(batch, -(-rows // batch), context) + drafting)
            if rate > best_rate:
                best, best_rate = length, rate
        if best:
            self._idle, self._probe_after = 0, PROBE_EVERY
            return best
        if self._idle >= self._probe_after:
            return 1  # until it is settled: a drafter may have to catch up first
        self._idle += 1
        self.rounds_held_back += 1
        return 0
