"""The traces of this directory: those to fit and choose on, divided for fitting, and those held out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trtserve.replay.traces import Trace, read_traces

HERE = Path(__file__).resolve().parent
LABELS = ("written", "model", "prefix")


def shipped(labels: tuple[str, ...] = LABELS) -> list[Trace]:
    """All traces that have an output, label by label, in the order of the workloads."""
    return [t for label in labels for t in read_traces(HERE / f"{label}.jsonl.gz") if t.output]


def held_out(labels: tuple[str, ...] = LABELS) -> list[Trace]:
    """Traces of other tasks of the same kinds, for judging alone: nothing may be fitted, tuned or chosen on them."""
    return [t for label in labels for t in read_traces(HERE / f"heldout-{label}.jsonl.gz") if t.output]


def half(trace: Trace) -> int:
    """0 or 1, the same for all cases of a group and all outputs of a case: for fitting on one half alone.

    A kind's groups are put into the halves by turns, so that each half has tasks of every kind. Raises KeyError for a
    trace of a group that does not ship.
    """
    return _halves()[_group(trace)]


def _group(trace: Trace) -> tuple[str, str]:
    return trace.kind, trace.group or trace.name


@cache
def _halves() -> dict[tuple[str, str], int]:
    halves: dict[tuple[str, str], int] = {}
    turn: dict[str, int] = {}
    for trace in shipped():
        if _group(trace) not in halves:
            halves[_group(trace)] = turn.get(trace.kind, 0)
            turn[trace.kind] = 1 - halves[_group(trace)]
    return halves
