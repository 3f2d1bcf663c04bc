"""Measuring verify cost: which shapes, what the contract allows, and what a slow machine still gets."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.executor import tiny
from trtserve.executor.base import Executor, ExecutorInfo, StepInput, StepOutput
from trtserve.executor.calibrate import Shape, measure, shapes_to_measure, stopwatch
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers


class ClockedExecutor(Executor):
    """Takes, on a clock of its own, a time that depends on the shape; checks the step contract as it goes."""

    def __init__(self, limits: Limits, speculative: Speculative, *, scale: float = 1e-3) -> None:
        self.info = ExecutorInfo(
            max_batch_size=limits.max_batch_size,
            max_seq_len=limits.max_seq_len,
            prefill_chunk=limits.prefill_chunk,
            vocab_size=50,
            tiers=plan_tiers(limits, speculative),
            exact=True,
            device="clocked",
        )
        self.now, self.scale = 0.0, scale
        self.filled = [0] * limits.max_batch_size
        self.steps: list[Shape] = []
        self.hiccups = 0

    def clock(self) -> float:
        return self.now

    def cost(self, batch: int, rows: int, context: int) -> float:
        return self.scale * (10 + batch * rows + context / 100)

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        assert 1 <= len(tokens) <= self.info.prefill_chunk
        assert self.filled[slot] == start
        assert tokens.dtype == np.int32
        assert tokens.min() >= 0
        assert tokens.max() < self.info.vocab_size
        self.filled[slot] = start + len(tokens)
        self.now += self.scale * len(tokens) / 10

    def step(self, batch: StepInput) -> StepOutput:
        rows, context = int(batch.num_rows[0]), int(batch.lengths[0])
        assert rows <= self.info.max_rows(len(batch.slots))
        assert len(set(batch.slots.tolist())) == len(batch.slots) == len(batch.sampling)
        assert len(batch.tokens) == int(batch.num_rows.sum())
        assert all(self.filled[s] >= context for s in batch.slots)
        assert context + rows <= self.info.max_seq_len
        assert all(s.plain for s in batch.sampling)
        shape = Shape(len(batch.slots), rows, context)
        self.steps.append(shape)
        # One call in five is disturbed, a hundredfold: a mean would show it, a lower quartile must not.
        self.hiccups += 1
        self.now += self.cost(*shape) * (100 if self.hiccups % 5 == 0 else 1)
        total = len(batch.tokens)
        return StepOutput(
            np.zeros(total, np.int32), np.zeros(len(batch.slots), np.int32), np.zeros(len(batch.slots), bool), []
        )

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        assert self.filled[source] >= length
        self.filled[target] = length

    def close(self) -> None:
        pass


def make(*, batch: int = 4, length: int = 4096, drafts: int = 8, scale: float = 1e-5) -> ClockedExecutor:
    limits = Limits(max_batch_size=batch, max_seq_len=length, prefill_chunk=16)
    lookup = PromptLookup(max_drafts=drafts, batch_max_drafts=3, max_seqs=2)
    return ClockedExecutor(limits, Speculative(prompt_lookup=lookup), scale=scale)


def test_every_shape_undisturbed_by_hiccups() -> None:
    executor = make()
    curve = measure(executor, contexts=(128, 1024), repeats=9, threads=2, clock=executor.clock)
    assert (curve.device, curve.threads) == ("clocked", 2)
    found = {(p.batch, p.rows, p.context): p.seconds for p in curve.points}
    lone = {(1, r, c) for r in range(1, 10) for c in (128, 1024)}
    copy = {(2, r, c) for r in (1, 2, 3, 4) for c in (128, 1024)}
    full = {(4, 1, c) for c in (128, 1024)}
    assert found.keys() == lone | copy | full
    for shape, seconds in found.items():
        assert seconds == pytest.approx(executor.cost(*shape), rel=1e-6)


def test_shapes_take_turns() -> None:
    executor = make()
    measure(executor, contexts=(128,), repeats=4, clock=executor.clock)
    shapes = shapes_to_measure(executor, (128,))
    rounds = [executor.steps[i : i + len(shapes)] for i in range(0, len(executor.steps), len(shapes))]
    assert rounds == [shapes, shapes, shapes[::-1], shapes, shapes[::-1]]  # the first is not counted


def test_many_rows_are_sampled_and_the_widest_is_measured() -> None:
    rows = [s.rows for s in shapes_to_measure(make(drafts=40), (0,)) if s.batch == 1]
    assert rows == [*range(1, 10), 12, 16, 24, 32, 41]


def test_batches_that_may_draft_are_measured_between_one_and_the_largest() -> None:
    limits = Limits(max_batch_size=48, max_seq_len=4096, prefill_chunk=16)
    lookup = PromptLookup(max_drafts=8, batch_max_drafts=8, max_seqs=24)
    executor = ClockedExecutor(limits, Speculative(prompt_lookup=lookup))
    shapes = shapes_to_measure(executor, (128,))
    by_batch = {b: [s.rows for s in shapes if s.batch == b] for b in {s.batch for s in shapes}}
    assert by_batch == {1: [*range(1, 10)], **{b: [1, 2, 3, 5, 9] for b in (2, 4, 8, 16, 24)}, 48: [1]}


@pytest.mark.parametrize(("length", "contexts"), [(64, {55}), (200, {128, 191}), (17, {8})])
def test_contexts_leave_room_for_the_rows(length: int, contexts: set[int]) -> None:
    executor = make(length=length)
    curve = measure(executor, contexts=(128, 1024), repeats=1, clock=executor.clock)
    assert {p.context for p in curve.points if p.batch == 1} == contexts


def test_a_slow_model_still_gets_the_shortest_context() -> None:
    executor = make(scale=1.0)
    curve = measure(executor, contexts=(1024, 128), repeats=7, seconds=10, clock=executor.clock)
    shapes = shapes_to_measure(executor, (128,))
    assert {(p.batch, p.rows, p.context) for p in curve.points} == set(shapes)
    assert len(executor.steps) == 2 * len(shapes)


def test_progress_adds_up_to_a_hundred_whatever_is_dropped() -> None:
    for scale in (1e-6, 1.0):
        executor, shown = make(scale=scale), []
        measure(executor, repeats=3, seconds=5, progress=shown.append, clock=executor.clock)
        assert sum(shown) == 100
        assert min(shown) > 0


@pytest.mark.parametrize(("contexts", "repeats"), [((), 1), ((-1,), 1), ((128,), 0)])
def test_senseless_requests_are_refused(contexts: tuple[int, ...], repeats: int) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        measure(make(), contexts=contexts, repeats=repeats)
    with pytest.raises(ValueError, match="at least one of each"):
        measure(make(), seconds=0)


def test_what_else_the_machine_does_is_not_counted_on_a_cpu() -> None:
    """A verify's time is the timer's; the clock, which others slow down, only says when to stop."""
    executor = make()
    curve = measure(
        executor, contexts=(128,), repeats=9, seconds=1e9, clock=lambda: 50 * executor.now, timer=executor.clock
    )
    for p in curve.points:
        assert p.seconds == pytest.approx(executor.cost(p.batch, p.rows, p.context))
    assert stopwatch(executor) is None, "it does not say on how many threads it computes"


def test_a_cpu_is_timed_by_its_processor() -> None:
    timer = stopwatch(tiny.executor(tiny.config()))
    assert timer is not None
    start, begin = timer(), time.process_time()
    sum(range(200_000))
    assert 0 < timer() - start <= time.process_time() - begin
