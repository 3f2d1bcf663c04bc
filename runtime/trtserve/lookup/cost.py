"""What forwards cost: the one reading of a measured curve, for everything that weighs drafts or models decode time.

Between measured row counts and batches a forward's time lies on the line between them. It never falls as rows grow, so
that a noisy measurement makes no row look free, and past the widest measured row it goes on along the last line. A
batch smaller or larger than any measured costs like the nearest. Of the contexts the nearest measured one counts, each
batch having its own; only those at which all of a batch's row counts were measured, one row among them, are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.lookup._native import VerifyCost

__all__ = ["ForwardCost", "VerifyCost", "read_curve", "verify_cost"]

#: Seconds at 1, 2, 3... rows, up to the most rows measured.
Times = tuple[float, ...]


class ForwardCost:
    """Seconds of a forward, by batch, rows and context. Made by ``read_curve``."""

    def __init__(self, times: Mapping[int, Mapping[int, Times]]) -> None:
        """``times[batch][context]``, at least one of each."""
        self._times = {batch: dict(by_context) for batch, by_context in sorted(times.items())}
        self._anywhere = {batch: _dearest(list(by_context.values())) for batch, by_context in self._times.items()}
        self._contexts = sorted({context for by_context in self._times.values() for context in by_context})
        self._known: dict[tuple[int, int, int | None], float] = {}
        self.batches = tuple(self._times)

    def seconds(self, batch: int, rows: int, context: int | None = None) -> float:
        """Of ``batch`` sequences of ``rows`` rows each after about ``context`` tokens; None: as ``row_times`` says."""
        if context is not None:
            context = _nearest(self._contexts, context)
        key = (batch, rows, context)
        if (known := self._known.get(key)) is None:
            below = max((b for b in self.batches if b <= batch), default=self.batches[0])
            above = min((b for b in self.batches if b >= batch), default=self.batches[-1])
            low, high = (_at(self.row_times(b, context), rows) for b in (below, above))
            known = low if below >= above else low + (high - low) * (batch - below) / (above - below)
            self._known[key] = known
        return known

    def row_times(self, batch: int, context: int | None = None) -> Times:
        """Of a measured batch. ``context`` None: its mean step, with the rows of the context where each costs most, so
        that drafts that are worth it there are worth it at all of them."""
        if context is None:
            return self._anywhere[batch]
        by_context = self._times[batch]
        return by_context[_nearest(by_context, context)]


def read_curve(curve: CostCurve | None) -> ForwardCost | None:
    """A curve made ready for asking; None where it says nothing: no curve, or no batch that can be compared."""
    if curve is None:
        return None
    batches = {p.batch for p in curve.points}
    times = {batch: _complete([p for p in curve.points if p.batch == batch]) for batch in batches}
    readable = {batch: by_context for batch, by_context in times.items() if by_context}
    return ForwardCost(readable) if readable else None


def verify_cost(curve: CostCurve | None) -> VerifyCost:
    """The relative cost of draft rows under a measured curve; None: every draft row adds 0.05 of a step.

    ``VerifyCost.at(batch, extra)`` is the time of a verify with ``extra`` draft rows over that of one without drafts,
    for the drafter, which weighs drafts without regard to the context. A batch measured at a single row count says
    nothing about drafts and is left out.
    """
    if (cost := read_curve(curve)) is None:
        return VerifyCost()
    rows = {batch: list(times) for batch in cost.batches if len(times := cost.row_times(batch)) > 1}
    return VerifyCost(list(rows), list(rows.values())) if rows else VerifyCost()


def _complete(points: Sequence[CostPoint]) -> dict[int, Times]:
    """Of one batch, by context, where all row counts were measured."""
    counts = sorted({p.rows for p in points})
    measured = {c: {p.rows: p.seconds for p in points if p.context == c} for c in {p.context for p in points}}
    if counts[0] != 1:
        return {}
    return {
        context: tuple(_never_falling(_every_row(sorted(seconds.items()))))
        for context, seconds in measured.items()
        if len(seconds) == len(counts)
    }


def _dearest(contexts: Sequence[Times]) -> Times:
    steps = [times[0] for times in contexts]
    return tuple(
        fmean(steps) * max(time / step for time, step in zip(at_row, steps, strict=True))
        for at_row in zip(*contexts, strict=True)
    )


def _nearest(contexts: Iterable[int], context: int) -> int:
    return min(contexts, key=lambda c: (abs(c - context), c))


def _at(times: Times, rows: int) -> float:
    if rows <= len(times):
        return times[rows - 1]
    last = times[-1] - times[-2] if len(times) > 1 else 0.0
    return times[-1] + last * (rows - len(times))


def _every_row(measured: Sequence[tuple[int, float]]) -> Iterable[float]:
    yield measured[0][1]
    for (low, before), (high, after) in pairwise(measured):
        for row in range(low + 1, high + 1):
            yield before + (after - before) * (row - low) / (high - low)


def _never_falling(times: Iterable[float]) -> Iterable[float]:
    most = 0.0
    for time in times:
        most = max(most, time)
        yield most
