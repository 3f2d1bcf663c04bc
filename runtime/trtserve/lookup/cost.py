"""What a verify costs by its rows: a measured curve, made ready for weighing drafts and for modelling decode time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.lookup._native import VerifyCost

__all__ = ["VerifyCost", "verify_cost"]


def verify_cost(curve: CostCurve | None) -> VerifyCost:
    """The relative cost of draft rows under a measured curve; None: every draft row adds 0.05 of a step.

    ``VerifyCost.at(batch, extra)`` is the time of a verify with ``extra`` draft rows over that of one without drafts.
    Between measured row counts and batches it lies on the line between them; a larger batch than any measured costs
    like the largest. Of the contexts at which all of a batch's row counts were measured the one counts at which a row
    costs most, so that drafts are worth it at all of them, and times never fall as rows grow, so that a noisy
    measurement makes no row look free. A batch measured at a single row count says
    nothing about drafts and is left out.
    """
    if curve is None:
        return VerifyCost()
    batches, rows = [], []
    for batch in sorted({p.batch for p in curve.points}):
        times = _times([p for p in curve.points if p.batch == batch])
        if len(times) > 1:
            batches.append(batch)
            rows.append(times)
    return VerifyCost(batches, rows) if batches else VerifyCost()


def _times(points: Sequence[CostPoint]) -> list[float]:
    """Seconds at 1, 2, 3... rows, up to the most rows measured."""
    counts = sorted({p.rows for p in points})
    by_context = {c: {p.rows: p.seconds for p in points if p.context == c} for c in {p.context for p in points}}
    complete = [times for _, times in sorted(by_context.items()) if len(times) == len(counts)]
    if not complete or counts[0] != 1:
        return []
    step = fmean(times[1] for times in complete)
    measured = [(count, step * max(times[count] / times[1] for times in complete)) for count in counts]
    return list(_never_falling(_every_row(measured)))


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
