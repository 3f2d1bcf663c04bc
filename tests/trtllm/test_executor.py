"""Our drafter inside the executor's loop: order, padding, limits, cancellation, failures, ranks, dummies, pauses."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trtserve import Engine
from trtserve.engine.emit import TextStream
from trtserve.engine.protocol import (
    EngineClosedError,
    EngineError,
    Finish,
    GenerationRequest,
    QueueFullError,
    RequestError,
    Scope,
)
from trtserve.engine.stats import gauges
from trtserve.executor.base import ExecutorError
from trtserve.loading import load_engine
from trtserve.sampling import SamplingParams

from . import fake
from .conftest import Open, worker
from .fake.pytorch import RankDisagreementError
from .test_equality import KINDS, collect, outcome, requests_of

REPEAT = "abcabcabcabcabc"
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}


def running(engine: Engine, count: int, **params: Any) -> list[GenerationRequest]:
    return [
        GenerationRequest(list(engine.tokens(REPEAT + chr(97 + i))), SamplingParams(**{**LONG, **params}), Scope("t"))
        for i in range(count)
    ]


def free_slots(engine: Engine) -> list[int]:
    """The executor's free slots, once it has nothing to do: responses are sent before resources are freed."""
    deadline = time.monotonic() + 20
    while worker(engine).active or len(worker(engine).slots) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return sorted(worker(engine).slots)


def test_loop_order_is_the_contracts(open_engine: Open) -> None:
    engine = open_engine("1.3")
    engine.generate(REPEAT, **LONG)
    free_slots(engine)
    trace, order = worker(engine).trace, fake.load("1.3")["executor_loop"]["order"]
    # Every iteration is the contract's list, some steps left out, none twice and none out of turn.
    places = [order.index(step) for step in trace]
    iterations = places.count(0)
    assert iterations == 1 + sum(later <= earlier for earlier, later in itertools.pairwise(places))
    drafted = trace.index("prepare_draft_tokens")
    assert trace.index("prepare_resources") < drafted < trace.index("pad_draft_tokens") < trace.index("forward")
    freed = trace.index("free_resources")
    assert trace[freed - 1] == "respond" and trace.count("free_resources") == 1


def test_rounds_are_padded_and_limits_obeyed(open_engine: Open) -> None:
    engine = open_engine("1.3", speculative={"prompt_lookup": {"max_drafts": 6, "batch_max_drafts": 2}})
    fake_worker = worker(engine)
    engine.generate(REPEAT, **LONG)
    lone = [len(d) for drafts in fake_worker.drafted for d in drafts.values()]
    assert max(lone) == 6 and {rows for f in fake_worker.forwards[1:] for rows in f} == {7}
    fake_worker.drafted.clear()
    collect(engine, running(engine, 3))
    together = [len(d) for drafts in fake_worker.drafted if len(drafts) > 1 for d in drafts.values()]
    assert max(together) == 2


def test_drafts_stay_within_the_budget(open_engine: Open) -> None:
    engine = open_engine("1.3")
    for most in (1, 2, 3, 5):
        done = engine.generate(REPEAT, **{**LONG, "max_tokens": most})
        assert len(done.tokens) == most
        assert done.finish.reason == "length"
        last = [max((len(d) for d in r.values()), default=0) for r in worker(engine).drafted]
        assert max(last) <= max(most - 2, 0) or most > 3


def test_speculation_is_off_and_stays_off_above_max_seqs(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3", speculative={"prompt_lookup": {"max_seqs": 2}})
    requests = running(engine, 4)
    assert outcome(collect(engine, requests)) == outcome(collect(reference, requests))
    crowded = [f for f in worker(engine).forwards if len(f) > 2]
    assert crowded and all(set(f) == {1} for f in crowded)
    # Requests that were in a crowded forward have no rows for drafts any more; a new one has.
    assert engine.generate(REPEAT, **LONG).finish.stats.sources["history"].accepted > 0  # type: ignore[union-attr]


@pytest.mark.parametrize("line", ["1.3", "1.4"])
def test_ranks_agree(line: str, open_engine: Open, reference: Engine) -> None:
    engine = open_engine(
        line,
        tensorrt_llm={"tensor_parallel_size": 3},
        speculative={"prompt_lookup": {"shared_cache": {"mb": 1, "scopes": 2}}},
    )
    requests = requests_of(reference, KINDS)
    assert outcome(collect(engine, requests)) == outcome(collect(reference, requests))
    assert len(worker(engine).ranks) == 3 and worker(engine).error is None
    # One rank tells of the rounds, not each of them.
    assert engine.metrics()["rounds_total"] == sum(map(bool, worker(engine).drafted))


def test_a_rank_that_drafts_otherwise_is_noticed(open_engine: Open) -> None:
    """The fake would see what a real group would compute nonsense from."""
    engine = open_engine("1.3", tensorrt_llm={"tensor_parallel_size": 2})
    manager = next(iter(worker(engine).ranks[1].managers.resource_managers.values()))
    manager.draft = lambda requests: {r.py_request_id: [5] for r in requests}
    with pytest.raises(EngineError, match="ranks drafted"):
        engine.generate(REPEAT, **LONG)
    assert isinstance(worker(engine).error, RankDisagreementError)
    assert engine.engine.healthy  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(EngineError):
            engine.generate(REPEAT, **LONG)
    assert not engine.engine.healthy  # type: ignore[attr-defined]
    worker(engine).error = None


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failing_drafter(ranks: int, open_engine: Open, reference: Engine) -> None:
    """Alone it is switched off and text goes on; in a group the executor must stop rather than compute nonsense."""
    engine = open_engine("1.3", tensorrt_llm={"tensor_parallel_size": ranks})
    engine.generate(REPEAT, **LONG)
    manager = next(iter(worker(engine).ranks[0].managers.resource_managers.values()))
    manager._drafts.draft = lambda requests: 1 // 0
    if ranks == 1:
        wanted = reference.generate(REPEAT, **LONG)
        done = engine.generate(REPEAT, **LONG)
        assert done.text == wanted.text
        assert done.finish.stats.sources["history"].proposed == 0
        assert engine.engine.healthy  # type: ignore[attr-defined]
    else:
        with pytest.raises(EngineError, match="division"):
            engine.generate(REPEAT, **LONG)
        worker(engine).error = None


def test_dummy_requests_get_no_drafts_and_no_place(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3")
    worker(engine).dummies = 3
    requests = running(engine, 2)
    assert outcome(collect(engine, requests)) == outcome(collect(reference, requests))
    drafted = worker(engine).drafted
    assert all(not d for drafts in drafted for number, d in drafts.items() if number >= 2**40)
    assert any(d for drafts in drafted for d in drafts.values())
    # Dummies do not count as active: a lone request still copies as one.
    engine.generate(REPEAT, **LONG)
    assert max(len(d) for drafts in drafted for d in drafts.values()) == 8


def test_paused_requests_come_back(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3", speculative={"prompt_lookup": {"shared_cache": {"mb": 1, "scopes": 2}}})
    worker(engine).pause_at = {5, 9}
    done = engine.generate(REPEAT, **LONG)
    assert done.text == reference.generate(REPEAT, **LONG).text
    assert free_slots(engine) == [0, 1, 2, 3]
    assert worker(engine).trace.count("terminate_paused") == 2
    assert done.finish.stats.sources["history"].accepted > 0
    # Only what came to its end is a document of the shared cache.
    manager = next(iter(worker(engine).ranks[0].managers.resource_managers.values()))
    assert manager._drafts._shared.stats().documents == 1


def test_where_sequences_stand_is_not_looked_up_for_every_round(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtserve.engine.tensorrt_llm import pytorch

    looks: list[int] = []

    def look(running: Any, shared: Any) -> Any:
        looks.append(len(sequences := list(running)))
        return gauges(sequences, shared)

    monkeypatch.setattr(pytorch, "gauges", look)
    monkeypatch.setattr(pytorch, "_GAUGES_SECONDS", float("inf"))
    engine = open_engine("1.3")
    collect(engine, running(engine, 3))
    # When one begins and when one ends.
    assert len(looks) == 6 and looks[-1] == 0
    metrics = engine.metrics()
    assert metrics["generation_tokens_total"] == 180 and metrics["kv_tokens_used"] == 0


def test_cancelled_requests_free_their_slot_and_leave_nothing(open_engine: Open) -> None:
    engine = open_engine("1.3", speculative={"prompt_lookup": {"shared_cache": {"mb": 1, "scopes": 2}}})
    generation = engine.submit(REPEAT, **{**LONG, "max_tokens": 200})
    events = iter(generation)
    next(events)
    generation.cancel()
    finish = [e for e in events if isinstance(e, Finish)]
    assert [f.reason for f in finish] == ["cancelled"]
    generation.cancel()
    engine.generate("zzz", **LONG)
    assert free_slots(engine) == [0, 1, 2, 3]
    manager = next(iter(worker(engine).ranks[0].managers.resource_managers.values()))
    assert not manager._drafts._live and manager._drafts._shared.stats().documents == 1
    assert engine.metrics()["finished_total"] == {"stop": 0, "length": 1, "cancelled": 1, "error": 0}


def test_a_stop_string_aborts_what_runs_on(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3")
    wanted = reference.generate(REPEAT, **LONG)
    stop = next(c for c in wanted.text[3:] if c.isprintable() and c != "\ufffd")
    ours, theirs = (e.generate(REPEAT, **LONG, stop=(stop,)) for e in (engine, reference))
    assert ours.text == theirs.text and ours.finish is not None and ours.finish.stop == stop
    engine.generate("zzz", **LONG)
    assert free_slots(engine) == [0, 1, 2, 3]


def test_of_rounds_past_a_requests_end_nothing_is_kept(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("1.3")
    feed, tasks = engine.engine._feed, engine.engine._tasks  # type: ignore[attr-defined]
    # An abort that comes late: the executor goes on, and announces rounds that nobody reads as they come.
    monkeypatch.setattr(engine.engine, "_abort", lambda result: None)
    text = engine.generate(REPEAT, **LONG).text
    engine.generate(REPEAT, **LONG, stop=(text[3],))
    deadline = time.monotonic() + 20
    while tasks:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    feed.drain()
    assert not feed._rounds and not feed._latest


def test_a_failed_forward_ends_its_requests_and_the_engine_lives(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3", speculative={"prompt_lookup": {"shared_cache": {"mb": 1, "scopes": 2}}})
    worker(engine).fail_at = {6}
    with pytest.raises(EngineError, match="the forward failed"):
        engine.generate(REPEAT, **LONG)
    assert free_slots(engine) == [0, 1, 2, 3]
    manager = next(iter(worker(engine).ranks[0].managers.resource_managers.values()))
    assert not manager._drafts._live and manager._drafts._shared.stats().documents == 0
    assert engine.generate(REPEAT, **LONG).text == reference.generate(REPEAT, **LONG).text


def test_what_tensorrt_llm_refuses_says_nothing_of_its_health(open_engine: Open) -> None:
    engine = open_engine("1.3")
    inner: Any = engine.engine
    llm, inner._llm = inner._llm, Refusing(inner._llm, ValueError("too long"))
    for _ in range(4):
        with pytest.raises(EngineError, match="could not be started: too long"):
            engine.generate(REPEAT, **LONG)
    assert inner.healthy
    inner._llm = Refusing(llm, RuntimeError("is shutting down"))
    for _ in range(4):
        with pytest.raises(EngineError, match="shutting down"):
            engine.generate(REPEAT, **LONG)
    assert not inner.healthy
    inner._llm = llm


class Refusing:
    """An ``LLM`` whose ``generate_async`` raises."""

    def __init__(self, llm: Any, error: Exception) -> None:
        self._wrapped, self._error = llm, error

    def generate_async(self, *_: Any, **__: Any) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def test_queue_drain_and_close(open_engine: Open) -> None:
    engine = open_engine("1.3", overrides={"max_queue": 1})
    generations = [engine.submit(REPEAT, **LONG) for _ in range(5)]
    with pytest.raises(QueueFullError):
        engine.submit(REPEAT, **LONG)
    collected: list[Any] = []
    readers = [threading.Thread(target=lambda g=g: collected.append(list(g)[-1])) for g in generations]
    for reader in readers:
        reader.start()
    assert engine.engine.drain(60)
    for reader in readers:
        reader.join()
    assert [f.reason for f in collected] == ["length"] * 5
    with pytest.raises(EngineError, match="shutting down"):
        engine.submit(REPEAT, **LONG)
    engine.close()
    engine.close()


def test_close_ends_what_runs(open_engine: Open) -> None:
    engine = open_engine("1.3")
    generation = engine.submit(REPEAT, **{**LONG, "max_tokens": 200})
    events = iter(generation)
    next(events)
    engine.close()
    assert list(events)[-1].reason == "cancelled"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["an error that ends a thread", "a loop that stops"])
def test_a_loop_that_dies_leaves_nobody_waiting(open_engine: Open, how: str) -> None:
    engine = open_engine("1.3", overrides={"max_queue": 4})
    inner = engine.engine
    generations = [engine.submit(REPEAT, **{**LONG, "max_tokens": 200}) for _ in range(6)]
    next(iter(generations[0]))

    def die() -> None:
        raise SystemExit("no more")

    inner._loop.call_soon_threadsafe(die if how.startswith("an error") else inner._loop.stop)  # type: ignore[attr-defined]
    ends = [list(generation)[-1] for generation in generations]
    assert all(isinstance(end, Finish) and end.reason == "error" for end in ends)
    assert "internal error" in ends[-1].error  # type: ignore[operator,union-attr]
    inner._thread.join(20)  # type: ignore[attr-defined]
    assert not inner.healthy  # type: ignore[attr-defined]
    assert inner.metrics()["requests_waiting"] == inner.metrics()["requests_running"] == 0
    with pytest.raises(EngineClosedError, match="internal error"):
        engine.submit(REPEAT, **LONG)
    # TensorRT-LLM went with it, and closing finds nothing left to do.
    assert not worker(engine).thread.is_alive()
    assert inner.drain(5)
    engine.close()


@pytest.mark.parametrize("error", [RuntimeError, type("Panic", (BaseException,), {})])
def test_a_failing_detokenizer_at_the_end_ends_that_request_alone(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """One that panics too, as a library in Rust does."""
    engine = open_engine("1.3")

    def broken(self: TextStream, may_stop: bool = True) -> str | None:
        raise error("no text")

    with monkeypatch.context() as patched:
        patched.setattr(TextStream, "finish", broken)
        with pytest.raises(EngineError, match="no text"):
            engine.generate(REPEAT, **LONG)
    assert engine.generate(REPEAT, **LONG).finish.reason == "length"


def test_how_long_to_wait_counts_service_and_not_waiting(open_engine: Open) -> None:
    engine = open_engine("1.3", overrides={"max_queue": 32})
    served: list[float] = []
    door = engine.engine._door  # type: ignore[attr-defined]
    door.served = served.append
    started = time.perf_counter()
    done = collect(engine, running(engine, 12))
    # Four slots have been busy for no longer than that; with the time in the queue it would be more.
    assert len(served) == 12 and sum(served) <= 4 * (time.perf_counter() - started)
    waited = [completion.finish.stats.queue_time for completion in done]
    assert max(waited[:4]) < min(waited[4:8]) < min(waited[8:])


@pytest.mark.parametrize("line", ["1.2", "1.3"])
def test_finished_requests_are_recorded(line: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr("trtserve.facade.load_engine", partial(load_engine, recorder=lambda *r: recorded.append(r)))
    engine = open_engine(line)
    done = engine.generate(REPEAT, **LONG, scope=Scope("alice"), prediction=[3, 4])
    ((scope, prompt, output, prediction),) = recorded
    assert scope == Scope("alice") and prompt.tolist() == list(engine.tokens(REPEAT))
    assert output.tolist() == [t.token for t in done.tokens] and prediction.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("line", "arguments", "param"),
    [
        ("1.3", {"presence_penalty": 1.0}, "presence_penalty"),
        ("1.3", {"repetition_penalty": 1.2}, "repetition_penalty"),
        ("1.3", {"min_tokens": 2, "stop_token_ids": (5,)}, "min_tokens"),
        ("1.3", {"scope": Scope(adapter="none-such")}, "model"),
        ("1.2", {"logprobs": 1}, "logprobs"),
        ("1.2", {"frequency_penalty": 1.0}, "frequency_penalty"),
        ("1.2", {"scope": Scope(adapter="x")}, "model"),
        ("1.3", {"max_tokens": 1000}, "max_tokens"),
    ],
)
def test_refused_at_the_door(line: str, arguments: dict[str, Any], param: str, open_engine: Open) -> None:
    engine = open_engine(line)
    with pytest.raises(RequestError) as refused:
        engine.generate("abc", **arguments)
    assert refused.value.param == param


def test_verify_requests_fail_alone(open_engine: Open) -> None:
    from .conftest import verify_executor

    engine = open_engine("1.2")
    verify_executor(engine).fail_at = {4}
    with pytest.raises(EngineError, match="the forward failed"):
        engine.generate(REPEAT, **LONG)
    assert verify_executor(engine).canceled == [4]
    assert len(engine.generate(REPEAT, **LONG).tokens) == 60


def test_a_failed_verify_request_ends_its_own_sequence(open_engine: Open, reference: Engine) -> None:
    from .conftest import verify_executor

    engine = open_engine("1.2")
    verify_executor(engine).fail_at = {12}
    requests = running(engine, 3)
    done, wanted = collect(engine, requests), collect(reference, requests)
    assert sorted(c.finish.reason for c in done) == ["error", "length", "length"]
    right = [(ours.text, theirs.text) for ours, theirs in zip(done, wanted, strict=True) if not ours.finish.error]
    assert len(right) == 2 and all(ours == theirs for ours, theirs in right)
    assert verify_executor(engine).canceled == [12] and engine.engine.healthy  # type: ignore[attr-defined]


@pytest.mark.parametrize("failing", ["versions.require_parameters", "find_carrier"])
def test_an_engine_that_cannot_be_opened_leaves_nothing(
    failing: str, open_engine: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(where: Any, *given: Any) -> None:
        if where != "LLM.generate_async":
            raise ExecutorError("not this version")

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(f"trtserve.engine.tensorrt_llm.{failing}", refuse)
    with pytest.raises(ExecutorError, match="not this version"):
        open_engine("1.3")
    assert not list(scratch.glob("trtserve-*"))
    assert not [thread for thread in threading.enumerate() if thread.name == "fake-executor"]
