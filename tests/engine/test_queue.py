"""Waiting, cancelling, draining and closing; what is refused at the door."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import (
    EngineClosedError,
    Finish,
    GenerationRequest,
    QueueFullError,
    RequestError,
)
from trtserve.executor.base import StepInput
from trtserve.sampling import SamplingParams

from .toy import VOCAB, ToyExecutor, collect, ids, reference, token_ids

Make = Callable[..., LocalEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def toy(engine: LocalEngine) -> ToyExecutor:
    assert isinstance(engine._executor, ToyExecutor)
    return engine._executor


class Gate:
    """Holds the engine inside a step until opened."""

    def __init__(self, engine: LocalEngine) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        toy(engine).before_step = self._wait

    def _wait(self, batch: StepInput) -> None:
        self.reached.set()
        assert self._open.wait(20)

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [0] * 128}, "prompt", "has 128 tokens; this engine's context holds 128"),
        ({"prompt": [0] * 4000}, "prompt", "has 4000 tokens"),
        ({"prompt": [0, VOCAB]}, "prompt", rf"prompt\[1\] is {VOCAB}.*allowed: 0 to {VOCAB - 1}"),
        ({"prompt": [0, -1]}, "prompt", r"prompt\[1\] is -1"),
        ({"prompt": [1 << 70]}, "prompt", "prompt"),
        ({"prompt": ["a"]}, "prompt", "integers"),
        ({"prompt": [[1], [2]]}, "prompt", "flat list"),
        ({"prompt": [[1], [2, 3]]}, "prompt", "flat list"),
        ({"prompt": [1.5]}, "prompt", "integers"),
        ({"prediction": [VOCAB]}, "prediction", r"prediction\[0\]"),
        ({"params": {"max_tokens": 127}}, "max_tokens", "2 tokens and max_tokens is 127, together 129.* at most 126"),
        ({"params": {"min_tokens": 127}}, "min_tokens", "min_tokens is 127.*at most 126"),
        ({"params": {"min_tokens": 9, "max_tokens": 8}}, "min_tokens", "at most 8"),
        ({"params": {"logit_bias": {VOCAB: 1.0}}}, "logit_bias", f"token {VOCAB} is outside"),
        ({"params": {"stop_token_ids": (1, VOCAB)}}, "stop_token_ids", f"token {VOCAB} is outside"),
    ],
)
def test_refusals_name_the_field_and_the_numbers(
    make_engine: Make, fields: dict[str, object], param: str, message: str
) -> None:
    engine = make_engine()
    params = SamplingParams(**fields.pop("params", {}))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=message) as e:
        engine.submit(GenerationRequest(**{"prompt": [1, 2], "params": params, **fields}))  # type: ignore[arg-type]
    assert e.value.param == param
    assert token_ids(collect(engine.submit(GenerationRequest([1, 2], GREEDY)))) == reference([1, 2], GREEDY)


def test_the_longest_prompt_and_budget_fit(make_engine: Make) -> None:
    done = collect(make_engine().submit(GenerationRequest([1] * 127, SamplingParams(temperature=0, max_tokens=1))))
    assert len(done.tokens) == 1


def test_first_come_first_served(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    gate = threading.Event()
    served: list[int] = []

    def step(batch: StepInput) -> None:
        assert gate.wait(10)
        if not served or served[-1] != batch.sampling[0].seed:
            served.append(batch.sampling[0].seed)

    toy(engine).before_step = step
    requests = [GenerationRequest(ids("abc"), GREEDY.model_copy(update={"seed": n})) for n in range(10)]
    generations = [engine.submit(r) for r in requests]
    gate.set()
    for g in generations:
        collect(g)
    assert served == list(range(10))


def test_queue_full_says_when_to_come_back(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 2}, max_queue=3)
    gate = Gate(engine)
    generations = [engine.submit(GenerationRequest(ids("abc"), GREEDY)) for _ in range(5)]
    with pytest.raises(QueueFullError, match="3 requests are waiting") as e:
        engine.submit(GenerationRequest(ids("abc"), GREEDY))
    assert 1 <= e.value.retry_after <= 60
    assert gate.reached.wait(10)
    generations[4].cancel()
    gate.open()
    reasons = [f.reason for g in generations if (f := collect(g).finish) is not None]
    assert reasons == ["length"] * 4 + ["cancelled"]
    assert engine.drain(10)


def test_a_queue_of_none_is_refused(make_engine: Make) -> None:
    with pytest.raises(ValueError, match="max_queue is 0; allowed: 1 or more"):
        make_engine(max_queue=0)


def test_cancel_while_waiting(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    gate = Gate(engine)
    running = engine.submit(GenerationRequest(ids("abc"), GREEDY))
    waiting = engine.submit(GenerationRequest(ids("def"), GREEDY))
    assert gate.reached.wait(10)
    assert engine.metrics()["requests_waiting"] >= 1
    waiting.cancel()
    gate.open()
    done = collect(waiting)
    assert done.finish.reason == "cancelled" and not done.tokens
    assert done.finish.stats.rounds == 0 and done.finish.stats.prompt_tokens == 3
    assert token_ids(collect(running)) == reference(ids("abc"), GREEDY)


def test_cancel_frees_the_slot_within_a_round(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1}, drafter=None)
    params = SamplingParams(temperature=0, ignore_eos=True)
    seen = []
    ready = threading.Event()

    def watch(batch: StepInput) -> None:
        assert ready.wait(10)
        seen.append(batch.sampling[0].prompt_len)
        if len(seen) == 3:
            first.cancel()

    toy(engine).before_step = watch
    first = engine.submit(GenerationRequest(ids("abc"), params))
    second = engine.submit(GenerationRequest(ids("defgh"), GREEDY))
    ready.set()
    done = collect(first)
    assert done.finish.reason == "cancelled" and len(done.tokens) == 3
    assert token_ids(collect(second)) == reference(ids("defgh"), GREEDY)
    assert seen == [3] * 3 + [5] * 12


def test_cancel_again_and_after_the_end_is_harmless(make_engine: Make) -> None:
    engine = make_engine()
    generation = engine.submit(GenerationRequest(ids("abc"), GREEDY))
    events = list(generation)
    generation.cancel()
    generation.cancel()
    assert isinstance(events[-1], Finish) and events[-1].reason == "length"
    assert list(generation) == []
    assert engine.drain(10) and engine.metrics()["finished_total"] == {
        "stop": 0,
        "length": 1,
        "cancelled": 0,
        "error": 0,
    }


def test_cancel_storm_from_many_threads(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 3}, max_queue=1000)
    prompts = [ids("the foo(abc) of the foo(" + "abcdefgh"[: i % 8]) for i in range(16)]
    expected = [reference(p, GREEDY) for p in prompts]
    problems: list[str] = []

    def client(number: int) -> None:
        draw = random.Random(number)
        for _ in range(30):
            i = draw.randrange(len(prompts))
            generation = engine.submit(GenerationRequest(prompts[i], GREEDY))
            if draw.random() < 0.6:
                for _ in range(draw.randrange(3)):
                    if isinstance(next(iter(generation)), Finish):
                        break
                generation.cancel()
                continue
            got = collect(generation)
            if token_ids(got) != expected[i]:
                problems.append(f"{prompts[i]}: {token_ids(got)}")

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not problems
    assert engine.drain(20)
    stats = engine.metrics()
    assert stats["requests_running"] == stats["requests_waiting"] == stats["kv_tokens_used"] == 0
    assert sum(stats["finished_total"].values()) == 240 and stats["finished_total"]["error"] == 0
    assert engine._slots.num_free == 3


def test_a_long_prompt_does_not_stall_running_sequences(make_engine: Make) -> None:
    """Between two rounds of a running sequence there is at most one chunk of someone else's prefill."""
    engine = make_engine(limits={"max_batch_size": 4, "max_seq_len": 512}, drafter=None)
    log: list[str] = []
    late: list[object] = []

    def step(batch: StepInput) -> None:
        log.append("step")
        if len(log) == 5:
            late.append(engine.submit(GenerationRequest(ids("abcdefgh" * 20), GREEDY)))
            late.append(engine.submit(GenerationRequest(ids("ijklmnop" * 20), GREEDY)))

    toy(engine).before_prefill = lambda *a: log.append("prefill")
    toy(engine).before_step = step
    collect(engine.submit(GenerationRequest(ids("abc"), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))))
    for generation in late:
        collect(generation)  # type: ignore[arg-type]
    text = "".join(c[0] for c in log)
    assert "pp" not in text[2:] and text.count("p") == 1 + 10 + 10


def test_short_prompts_share_one_chunk(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 4, "prefill_chunk": 16}, drafter=None)
    log: list[str] = []
    gate = threading.Event()

    def step(batch: StepInput) -> None:
        assert gate.wait(10)
        log.append(f"step {len(batch.slots)}")

    toy(engine).before_step = step
    toy(engine).before_prefill = lambda slot, start, tokens: log.append(f"prefill {len(tokens)}")
    first = engine.submit(GenerationRequest(ids("abc"), GREEDY))
    while not log:
        time.sleep(0.001)
    rest = [engine.submit(GenerationRequest(ids(p), GREEDY)) for p in ("defghij", "klmnopq", "rstuvwx")]
    gate.set()
    for g in (first, *rest):
        collect(g)
    assert log[:6] == ["prefill 2", "step 1", "prefill 6", "prefill 6", "step 3", "prefill 6"]


def test_drain_waits_and_refuses_new_requests(make_engine: Make) -> None:
    engine = make_engine()
    gate = Gate(engine)
    generations = [engine.submit(GenerationRequest(ids("abc"), GREEDY)) for _ in range(6)]
    result: list[bool] = []
    drainer = threading.Thread(target=lambda: result.append(engine.drain()))
    drainer.start()
    while not engine._door.draining:
        time.sleep(0.001)
    with pytest.raises(EngineClosedError, match="shutting down"):
        engine.submit(GenerationRequest(ids("abc"), GREEDY))
    assert not result
    gate.open()
    drainer.join(20)
    assert result == [True]
    assert all(token_ids(collect(g)) == reference(ids("abc"), GREEDY) for g in generations)


def test_drain_that_times_out_cancels(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    gate = Gate(engine)
    generations = [engine.submit(GenerationRequest(ids("abc"), GREEDY)) for _ in range(3)]
    assert engine.drain(0.01) is False
    gate.open()
    assert [f.reason for g in generations if (f := collect(g).finish) is not None] == ["cancelled"] * 3
    assert engine.drain(10) is True


def test_close_ends_everything_and_frees_the_executor(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    gate = Gate(engine)
    generations = [engine.submit(GenerationRequest(ids("abc"), GREEDY)) for _ in range(3)]
    assert gate.reached.wait(10)
    closers = [threading.Thread(target=engine.close) for _ in range(3)]
    for t in closers:
        t.start()
    gate.open()
    for t in closers:
        t.join(20)
    assert toy(engine).closed and not engine.healthy
    assert [f.reason for g in generations if (f := collect(g).finish) is not None] == ["cancelled"] * 3
    with pytest.raises(EngineClosedError):
        engine.submit(GenerationRequest(ids("abc"), GREEDY))
    engine.close()
    assert engine.metrics()["finished_total"]["cancelled"] == 3
