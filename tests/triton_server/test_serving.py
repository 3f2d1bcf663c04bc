"""Following generations and showing metrics, with a client and a Triton that the tests play themselves."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trtserve.api.metrics import RequestLatencies, RequestTimer
from trtserve.engine.protocol import Delta, Finish, Scope, TokenOut
from trtserve.loading import Loaded, load_engine
from trtserve.overrides import Overrides
from trtserve.sampling import SamplingParams
from trtserve.triton.metrics import TritonMetrics
from trtserve.triton.request import Call, Stop
from trtserve.triton.serving import Serving

from .tiny import CONTEXT, SLOTS, write_tiny_engine


class Client:
    """Collects the responses of one request. Fails the test on anything after the last one."""

    def __init__(self, *, fail_on_send: bool = False) -> None:
        self.pieces: list[dict[str, Any]] = []
        self.failure: tuple[str, str] | None = None
        self.leaving = False
        self.started = threading.Event()
        self.done = threading.Event()
        self._fail_on_send = fail_on_send

    def send(self, outputs: dict[str, Any], *, last: bool) -> None:
        assert not self.done.is_set()
        if self._fail_on_send:
            raise OSError("the pipe is gone")
        self.pieces.append(outputs)
        self.started.set()
        if last:
            self.done.set()

    def fail(self, kind: str, message: str) -> None:
        assert not self.done.is_set()
        self.failure = (kind, message)
        self.done.set()

    def cancelled(self) -> bool:
        return self.leaving

    def wait(self) -> Client:
        assert self.done.wait(30)
        return self


class NoObservers:
    def start(self) -> NoObservers:
        return self

    def observe(self, index: int, event: Delta | Finish) -> None:
        pass


def call(max_tokens: int = 8, *, request_id: str = "", tenant: str = "", streaming: bool = True) -> Call:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Call(request_id, Scope(tenant), "again", params, max_tokens_asked=True, streaming=streaming)


ENDLESS = CONTEXT - 16


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    directory = write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")
    found = load_engine(directory, Overrides(threads=1, max_queue=4))
    yield found
    found.engine.close()


@pytest.fixture
def serving(loaded: Loaded) -> Iterator[Serving]:
    made = Serving(loaded.engine, loaded.tokenizer, NoObservers())
    yield made
    made.close()


def accept(serving: Serving, what: Call | Stop, **options: Any) -> Client:
    client = Client(**options)
    serving.accept(what, client)
    return client


def idle(loaded: Loaded) -> bool:
    metrics = loaded.engine.metrics()
    return metrics["requests_running"] == metrics["requests_waiting"] == 0


def wait_idle(loaded: Loaded) -> None:
    deadline = time.monotonic() + 30
    while not idle(loaded):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_leaves_while_it_waits_is_let_go(serving: Serving, loaded: Loaded) -> None:
    running = [accept(serving, call(ENDLESS)) for _ in range(SLOTS)]
    for client in running:
        assert client.started.wait(30)
    waiting = accept(serving, call(ENDLESS))
    waiting.leaving = True
    assert waiting.wait().failure == ("cancelled", "Request cancelled by client")
    assert waiting.pieces == []
    assert not any(client.done.is_set() for client in running)
    for client in running:
        client.leaving = True
    assert {client.wait().failure for client in running} == {("cancelled", "Request cancelled by client")}
    wait_idle(loaded)


def test_a_stop_request_stops_its_id_within_its_tenant(serving: Serving, loaded: Loaded) -> None:
    mine = accept(serving, call(ENDLESS, request_id="1", tenant="a"))
    theirs = accept(serving, call(ENDLESS, request_id="1", tenant="b"))
    assert mine.started.wait(30) and theirs.started.wait(30)
    assert accept(serving, Stop("1", Scope("a"))).wait().failure is not None
    assert mine.wait().failure is not None
    assert not theirs.done.is_set()
    theirs.leaving = True
    theirs.wait()
    wait_idle(loaded)


def test_a_response_that_cannot_be_sent_frees_the_slot(serving: Serving, loaded: Loaded) -> None:
    client = accept(serving, call(ENDLESS), fail_on_send=True)
    assert client.wait().failure is not None and client.failure[0] == "internal"
    wait_idle(loaded)
    assert accept(serving, call()).wait().failure is None


def test_a_text_far_too_long_is_refused_at_once(serving: Serving, loaded: Loaded) -> None:
    huge = dataclasses.replace(call(), text="many words " * 100_000)
    failure = accept(serving, huge).wait().failure
    assert failure is not None and failure[0] == "invalid" and "the prompt has at least " in failure[1]


def test_a_prediction_longer_than_any_output_is_cut(serving: Serving) -> None:
    client = accept(serving, dataclasses.replace(call(), prediction="many words " * 100_000)).wait()
    assert client.failure is None


class Panic(BaseException):
    """As a library in Rust raises."""


@pytest.mark.parametrize("defect", [ZeroDivisionError, Panic])
def test_a_defect_on_the_way_in_is_answered(loaded: Loaded, defect: type[BaseException]) -> None:
    class Broken:
        def encode(self, *args: Any, **options: Any) -> Any:
            raise defect

    serving = Serving(loaded.engine, Broken(), NoObservers())  # type: ignore[arg-type]
    client = accept(serving, call()).wait()
    serving.close()
    assert client.failure is not None and client.failure[0] == "internal"
    assert defect.__name__ not in client.failure[1]


def test_a_thread_that_dies_leaves_nobody_waiting(loaded: Loaded) -> None:
    def die() -> None:
        raise SystemExit("no more")

    serving = Serving(loaded.engine, loaded.tokenizer, NoObservers())
    clients = [accept(serving, call(ENDLESS)) for _ in range(SLOTS + 1)]
    assert clients[0].started.wait(30)
    serving._loop.call_soon_threadsafe(die)
    stopped = ("unavailable", "the model's thread has stopped; load the model again")
    assert {client.wait().failure for client in clients} == {stopped}
    wait_idle(loaded)
    assert accept(serving, call()).wait().failure == stopped
    serving.close()


def test_closing_answers_everything_and_ends_the_threads(loaded: Loaded) -> None:
    before = set(threading.enumerate())
    serving = Serving(loaded.engine, loaded.tokenizer, NoObservers())
    clients = [accept(serving, call(ENDLESS)) for _ in range(SLOTS + 2)]
    assert clients[0].started.wait(30)
    serving.close()
    assert all(client.done.is_set() for client in clients)
    assert {client.failure for client in clients} <= {("unavailable", "the model is being unloaded")}
    assert set(threading.enumerate()) <= before
    wait_idle(loaded)


class Families:
    """Triton's metrics, as strict as the real ones are fragile: one thread at a time, metrics freed before families."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.alive = 0
        self.threads: set[int] = set()
        self.made: list[str] = []

    def noted(self, kind: str) -> None:
        """A metric of this kind was written."""

    def __call__(self, *, name: str, description: str, kind: str) -> Family:
        return Family(self, name, kind)


class Family:
    def __init__(self, all: Families, name: str, kind: str) -> None:
        self.all, self.name, self.kind, self.metrics = all, name, kind, 0

    def Metric(self, *, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:
        assert (buckets is not None) == (self.kind == Families.HISTOGRAM)
        assert labels["model_instance"] == "m_0_0"
        return Metric(self, ",".join(v for k, v in sorted(labels.items()) if k not in ("model_instance", "model_name")))


class Metric:
    def __init__(self, family: Family, labels: str) -> None:
        self._all, self._kind, self._key = family.all, family.kind, (family.name, labels)
        self._all.alive += 1
        self._all.made.append(family.name)

    def __del__(self) -> None:
        self._all.alive -= 1

    def _note(self, kind: str, value: float) -> None:
        assert kind == self._kind
        self._all.threads.add(threading.get_ident())
        self._all.values[self._key] = value + (0 if kind == "gauge" else self._all.values.get(self._key, 0))
        self._all.noted(kind)

    def increment(self, value: float) -> None:
        assert value >= 0
        self._note("counter", value)

    def set(self, value: float) -> None:
        self._note("gauge", value)

    def observe(self, value: float) -> None:
        self._note("histogram", 1)


def test_metrics_come_from_one_thread_and_are_freed_in_order(loaded: Loaded) -> None:
    families = Families()
    before = loaded.engine.metrics()["generation_tokens_total"]
    metrics = TritonMetrics(families, loaded.engine, "m", "m_0_0")  # type: ignore[arg-type]
    serving = Serving(loaded.engine, loaded.tokenizer, metrics)
    clients = [accept(serving, call(8)) for _ in range(4)]
    for client in clients:
        assert client.wait().failure is None
    emitted, latency = ("trtserve_generation_tokens_total", ""), ("trtserve_e2e_request_latency_seconds", "")
    deadline = time.monotonic() + 30
    while families.values.get(emitted, 0) < before + 32 or families.values.get(latency, 0) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert families.values[emitted] == before + 32
    assert families.values[latency] == 4
    serving.close()
    metrics.close()
    assert families.alive == 0
    assert len(families.threads) == 1
    assert threading.get_ident() not in families.threads


class Endless(Families):
    """Each observation of a latency brings the next, so that one always waits."""

    again: Callable[[], None] | None = None

    def noted(self, kind: str) -> None:
        if kind == "histogram" and self.again is not None:
            self.again()


def test_counters_are_copied_while_observations_wait(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtserve.triton.metrics.PERIOD", 0.01)
    families = Endless()
    metrics = TritonMetrics(families, loaded.engine, "m", "m_0_0")  # type: ignore[arg-type]
    timer = metrics.start()
    token = Delta("x", (TokenOut(1, None),))
    choices = itertools.count()
    families.again = lambda: timer.observe(next(choices), token)
    families.again()
    before = loaded.engine.metrics()["prompt_tokens_total"]
    serving = Serving(loaded.engine, loaded.tokenizer, metrics)
    assert accept(serving, call(2)).wait().failure is None
    deadline = time.monotonic() + 30
    while families.values.get(("trtserve_prompt_tokens_total", ""), 0) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    families.again = None
    serving.close()
    metrics.close()


def test_gaps_between_tokens_are_the_series_of_a_histogram(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtserve.triton.metrics.PERIOD", 0.01)
    now = iter([0.0, 1.0, 1.25, 2.25])
    monkeypatch.setattr("trtserve.api.metrics.time.perf_counter", lambda: next(now))
    families = Families()
    metrics = TritonMetrics(families, loaded.engine, "m", "m_0_0")  # type: ignore[arg-type]
    timer = metrics.start()
    for tokens in (1, 1, 4):  # the first has no gap, the second 0.25 s, the others share 1 s
        timer.observe(0, Delta("x", (TokenOut(1, None),) * tokens))
    name = "trtserve_inter_token_latency_seconds"
    deadline = time.monotonic() + 30
    while families.values.get((f"{name}_count", ""), 0) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    metrics.close()
    assert families.values[f"{name}_sum", ""] == 1.25
    buckets = {labels: value for (series, labels), value in families.values.items() if series == f"{name}_bucket"}
    assert (buckets.get("0.2", 0), buckets["0.3"], buckets["+Inf"]) == (0, 5, 5)
    assert families.made.count(f"{name}_bucket") == 18


def test_an_idle_engine_sends_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtserve.triton.metrics.PERIOD", 0.01)

    class Counted(Families):
        written = 0

        def noted(self, kind: str) -> None:
            self.written += 1

    families, copies = Counted(), []
    metrics = TritonMetrics(families, loaded.engine, "m", "m_0_0")  # type: ignore[arg-type]
    collect = metrics._collector.collect
    metrics._collector.collect = lambda: copies.append(families.written) or collect()  # type: ignore[method-assign, func-returns-value]
    deadline = time.monotonic() + 30
    while len(copies) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    metrics.close()
    # The first copies show everything once.
    assert families.values and len(set(copies[2:6])) == 1


def test_observations_do_not_pile_up_once_metrics_failed(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Families):
        def noted(self, kind: str) -> None:
            if kind == "histogram":
                raise RuntimeError("Triton is gone")

    metrics = TritonMetrics(Failing(), loaded.engine, "m", "m_0_0")  # type: ignore[arg-type]
    timer = metrics.start()
    token = Delta("x", (TokenOut(1, None),))
    timer.observe(0, token)
    metrics._thread.join(30)
    assert not metrics._thread.is_alive() and "metrics stopped" in caplog.text
    for choice in range(1, 100):
        timer.observe(choice, token)
    assert metrics._waiting._queue.qsize() == 0
    metrics.close()


def test_the_timers_histograms_are_all_made_by_the_given_factory() -> None:
    names: list[str] = []

    class Count:
        def observe(self, amount: float) -> None: ...

    def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Count:
        assert help and list(buckets) == sorted(buckets)
        names.append(name)
        return Count()

    RequestTimer(RequestLatencies(histogram))
    assert len(names) == len(set(names)) == 11
