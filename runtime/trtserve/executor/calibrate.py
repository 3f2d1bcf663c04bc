"""Measuring what a verify costs on this machine, by batch, rows and context: the curve the drafting policy weighs with.

Shapes are timed in turns, forwards and backwards, so that a slow moment of the machine falls on all of them alike, and
each shape's lower quartile counts: whatever disturbs a verify only makes it slower. One process, nothing assumed about
the device: an executor's ``step`` returns host arrays, so its wall time is the verify's. Of a verify on the CPU the
processor's time is taken, divided by the threads, so that what else runs on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.executor.base import Executor, StepInput
from trtserve.sampling import SamplingParams, SamplingState

DEFAULT_CONTEXTS = (128, 1024)
DEFAULT_REPEATS = 7
DEFAULT_SECONDS = 10.0

_LONE_ROWS = (*range(1, 10), 12, 16, 24, 32, 48)
_BATCH_ROWS = (1, 2, 3, 5, 9, 16, 32)


class Shape(NamedTuple):
    """One verify to time: ``batch`` sequences of ``rows`` rows, each after ``context`` tokens."""

    batch: int
    rows: int
    context: int


def shapes_to_measure(executor: Executor, contexts: Sequence[int]) -> list[Shape]:
    """The shapes of an executor's curve, the most telling first: the shortest context, batch 1, few rows.

    At batch 1 every row count up to 9 and a few beyond; at each tier's batch and the powers of two below the largest
    that may draft, where a row costs more the more sequences there are, a few. The widest is always among them. A
    context that leaves no room for the rows is cut to what does.
    """
    info = executor.info
    tiers = [t for t in info.tiers if t.name != "prefill"]
    drafting = max((t.batch for t in tiers if t.rows > 1), default=1)
    batches = sorted({1, *(t.batch for t in tiers), *(1 << n for n in range(drafting.bit_length()))})
    shapes: dict[Shape, None] = {}
    for context in sorted(contexts):
        for batch in batches:
            widest = info.max_rows(batch)
            rows = [r for r in (_LONE_ROWS if batch == 1 else _BATCH_ROWS) if r < widest]
            for row in (*rows, widest):
                fitting = min(context, info.max_seq_len - widest)
                if fitting >= 0 and row >= 1:
                    shapes[Shape(batch, row, fitting)] = None
    return list(shapes)


def measure(
    executor: Executor,
    *,
    contexts: Sequence[int] = DEFAULT_CONTEXTS,
    repeats: int = DEFAULT_REPEATS,
    seconds: float = DEFAULT_SECONDS,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    timer: Callable[[], float] | None = None,
) -> CostCurve:
    """Time verifies and return the lower quartile of each. Overwrites every slot of the executor.

    ``repeats``: timed rounds over all shapes, after one that is not counted. ``seconds``: when to stop starting
    rounds; the first timed round is always finished for the shortest context, the other contexts are dropped when
    there is no time for them, so a slow model still gets a curve. ``threads`` is recorded as given. ``progress`` is
    called with hundredths of the work done since the last call, 100 in all.
    ``clock`` says when to stop; ``timer`` times the verifies, by default the clock itself (see ``stopwatch``).
    """
    timer = timer or clock
    info = executor.info
    if not contexts or min(contexts) < 0 or repeats < 1 or seconds <= 0:
        raise ValueError(
            f"contexts {tuple(contexts)}, repeats {repeats}, seconds {seconds}: allowed are at least one of each, "
            "contexts from 0 up"
        )
    begin = clock()
    shapes = shapes_to_measure(executor, contexts)
    order = sorted({s.context for s in shapes})
    report = _Hundredths(progress, len(shapes) * (repeats + 1), lambda: (clock() - begin) / seconds)
    times: dict[Shape, list[float]] = {s: [] for s in shapes}
    filled = 0
    measured: list[int] = []
    for context in order:
        # Keys and values are written once and shared: verifying rows past them does not change them.
        if measured and clock() - begin > seconds * 0.5:
            break
        _prefill(executor, filled, context)
        filled = context
        mine = [s for s in shapes if s.context == context]
        for shape in mine:
            _time(executor, shape, timer)  # first touch of this shape: buffers, code paths, page faults
            report(1)
        for shape in mine:
            times[shape].append(_time(executor, shape, timer))
            report(1)
        measured.append(context)
    timed = [s for s in shapes if s.context in measured]
    for repeat in range(1, repeats):
        if clock() - begin > seconds:
            break
        for shape in timed if repeat % 2 == 0 else reversed(timed):
            times[shape].append(_time(executor, shape, timer))
            report(1)
    report.finish()
    points = tuple(
        CostPoint(batch=s.batch, rows=s.rows, context=s.context, seconds=max(_undisturbed(times[s]), 1e-9))
        for s in timed
    )
    return CostCurve(device=info.device, threads=threads, points=points)


def _undisturbed(times: Sequence[float]) -> float:
    """The lower quartile; of fewer than four the least."""
    return sorted(times)[len(times) // 4]


def _prefill(executor: Executor, start: int, end: int) -> None:
    """Extend every slot from ``start`` to ``end`` tokens; one slot computes, the others copy."""
    info = executor.info
    tokens = (np.arange(start, end, dtype=np.int64) % info.vocab_size).astype(np.int32)
    for first in range(0, len(tokens), info.prefill_chunk):
        executor.prefill(0, start + first, tokens[first : first + info.prefill_chunk])
    for slot in range(1, info.max_batch_size) if end > start else ():
        executor.copy_prefix(0, slot, end)


def stopwatch(executor: Executor) -> Callable[[], float] | None:
    """For ``measure``: this process's processor time over its threads where the executor computes on the CPU."""
    threads = getattr(executor, "threads", None)
    if threads is None or executor.info.device != "cpu":
        return None
    return lambda: time.process_time() / threads


def _time(executor: Executor, shape: Shape, clock: Callable[[], float]) -> float:
    vocab = executor.info.vocab_size
    empty = np.empty(0, np.int32)
    state = SamplingState.start(SamplingParams(temperature=0), empty, vocab, ())
    batch = StepInput(
        slots=np.arange(shape.batch, dtype=np.int32),
        lengths=np.full(shape.batch, shape.context, np.int32),
        num_rows=np.full(shape.batch, shape.rows, np.int32),
        tokens=(np.arange(shape.batch * shape.rows, dtype=np.int64) % vocab).astype(np.int32),
        sampling=[state] * shape.batch,
    )
    start = clock()
    executor.step(batch)
    return clock() - start


class _Hundredths:
    """Hundredths of a job that ends when its work or its time is used up, each reported once."""

    def __init__(self, advance: Callable[[int], None] | None, total: int, time_used: Callable[[], float]) -> None:
        self._advance, self._total, self._time_used = advance, max(total, 1), time_used
        self._done = self._shown = 0

    def __call__(self, work: int) -> None:
        self._done += work
        self._show(min(int(100 * max(self._done / self._total, self._time_used())), 99))

    def finish(self) -> None:
        self._show(100)

    def _show(self, hundredths: int) -> None:
        if self._advance is not None and hundredths > self._shown:
            self._advance(hundredths - self._shown)
        self._shown = max(self._shown, hundredths)
