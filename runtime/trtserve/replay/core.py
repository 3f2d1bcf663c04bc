"""The replay: each trace's output is emitted round by round, as a model that chose exactly it would have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from trtserve.replay.policies import NO_DRAFT, Draft, Policy
from trtserve.replay.traces import Trace


@dataclass(frozen=True)
class Limits:
    """Drafts a sequence may have: ``lone`` when it is alone, ``shared`` in a batch, none in one over ``most_seqs``."""

    lone: int = 16
    shared: int = 8
    most_seqs: int = 64

    def of(self, batch: int) -> int:
        if batch > self.most_seqs:
            return 0
        return self.lone if batch == 1 else self.shared


@dataclass(frozen=True)
class Round:
    """One sequence's part of one verify."""

    start: int  # tokens of the output before it
    draft: Draft
    accepted: int
    emitted: int


@dataclass
class Result:
    """One trace, replayed."""

    trace: Trace
    rounds: int = 0
    drafted: int = 0  # draft rows put through verifies
    accepted: int = 0
    copies: int = 0  # rounds with a draft
    kept: list[Round] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.trace.output)

    @property
    def wasted(self) -> int:
        return self.drafted - self.accepted


@dataclass
class Replay:
    """All traces of one run. ``shapes`` counts verifies by (sequences, draft rows); its times are a cost model's."""

    policy: str
    results: list[Result]
    shapes: Counter[tuple[int, int]]
    plain: Counter[int]  # the same run without drafts: verifies by sequences
    host_ns: int

    def time(self, cost: Callable[[int, int], float]) -> float:
        return sum(n * cost(batch, extra) for (batch, extra), n in self.shapes.items())

    def plain_time(self, cost: Callable[[int, int], float]) -> float:
        return sum(n * cost(batch, 0) for batch, n in self.plain.items())

    def speedup(self, cost: Callable[[int, int], float]) -> float:
        """Decode time without drafts over that with them."""
        return self.plain_time(cost) / self.time(cost)

    @property
    def tokens(self) -> int:
        return sum(r.tokens for r in self.results)

    @property
    def rounds(self) -> int:
        return sum(r.rounds for r in self.results)


@dataclass
class _Active:
    result: Result
    sequence: Any
    done: int = 0

    @property
    def left(self) -> int:
        return self.result.tokens - self.done


def replay(
    traces: Iterable[Trace], policy: Policy, *, batch: int = 1, limits: Limits | None = None, keep_rounds: bool = False
) -> Replay:
    """Replay traces, ``batch`` at a time, the next starting where one ends. Traces without output are left out.

    Host time is that of the policy's calls per round (propose, settle, observe), as the clock sees it.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; allowed: 1 or more")
    limits = limits or Limits()
    waiting = [t for t in traces if t.output]
    run = Replay(policy.name, [], Counter(), _plain([len(t.output) for t in waiting], batch), 0)
    waiting.reverse()
    active: list[_Active] = []
    while waiting or active:
        while waiting and len(active) < batch:
            trace = waiting.pop()
            active.append(_Active(Result(trace), policy.start(trace)))
        most = limits.of(len(active))
        begin = perf_counter_ns()
        drafts = _propose(policy, active, most)
        run.host_ns += perf_counter_ns() - begin
        run.shapes[len(active), sum(d.extra_rows for d in drafts)] += 1
        for one, draft in zip(active, drafts, strict=True):
            run.host_ns += _emit(policy, one, draft, keep_rounds)
        for one in [a for a in active if not a.left]:
            policy.finish(one.sequence)
            run.results.append(one.result)
            active.remove(one)
    return run


def _propose(policy: Policy, active: Sequence[_Active], most: int) -> list[Draft]:
    """As the engine does: a sequence whose next token is its last takes no part, and none does where none may."""
    taking_part = [i for i, a in enumerate(active) if a.left > 1] if most else []
    drafts = [NO_DRAFT] * len(active)
    if taking_part:
        limits = [min(most, active[i].left - 1) for i in taking_part]
        for i, draft in zip(
            taking_part, policy.propose([active[i].sequence for i in taking_part], limits), strict=True
        ):
            drafts[i] = draft
    return drafts


def _emit(policy: Policy, one: _Active, draft: Draft, keep_rounds: bool) -> int:
    """One sequence's round after the verify. Returns the policy's nanoseconds."""
    result, output = one.result, one.result.trace.output
    accepted = draft.accepted(output[one.done : -1])
    emitted = output[one.done : one.done + accepted + 1]
    begin = perf_counter_ns()
    if draft.tokens:
        policy.settle(one.sequence, draft, accepted)
    policy.observe(one.sequence, emitted)
    elapsed = perf_counter_ns() - begin
    result.rounds += 1
    result.drafted += draft.extra_rows
    result.accepted += accepted
    result.copies += bool(draft.tokens)
    if keep_rounds:
        result.kept.append(Round(one.done, draft, accepted, len(emitted)))
    one.done += len(emitted)
    return elapsed


def _plain(lengths: Sequence[int], batch: int) -> Counter[int]:
    """Verifies by how many sequences take part, where each emits one token a round."""
    shapes: Counter[int] = Counter()
    waiting = list(reversed(lengths))
    active: list[int] = []
    while waiting or active:
        while waiting and len(active) < batch:
            active.append(waiting.pop())
        rounds = min(active)
        shapes[len(active)] += rounds
        active = [left - rounds for left in active if left > rounds]
    return shapes
