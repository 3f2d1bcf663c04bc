"""The traces of this directory: those to fit and choose on, divided for fitting, and those held out."""

from __future__ import annotations

import zlib
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
    """0 or 1, the same for all cases of a group and all outputs of a case: for fitting on one half alone."""
    return zlib.crc32(f"{trace.kind}/{trace.group or trace.name}".encode()) & 1
