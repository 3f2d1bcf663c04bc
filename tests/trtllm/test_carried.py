"""What requests carry to the workers: predictions are copied from, and stop strings end what the shared cache keeps."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve import Engine
from trtserve.engine.protocol import Finish, Scope
from trtserve.engine.tensorrt_llm import carried as module
from trtserve.engine.tensorrt_llm.carried import Carried, find_carrier

from .conftest import Open, worker
from .test_executor import LONG, REPEAT, free_slots
from .test_isolation import CACHE, FIRST, PARAMS

ALICE, BOB = Scope(tenant="alice"), Scope(tenant="bob")


def shared_cache(engine: Engine, rank: int = 0) -> Any:
    """The statistics of a rank's shared cache, once the executor is idle."""
    free_slots(engine)
    manager = next(iter(worker(engine).ranks[rank].managers.resource_managers.values()))
    return manager._drafts._shared.stats()


def request_with(conversation_id: Any) -> Any:
    return SimpleNamespace(py_conversation_params=SimpleNamespace(conversation_id=conversation_id))


@settings(max_examples=50, deadline=None)
@given(
    prediction=st.lists(st.integers(0, 2**31 - 1), max_size=40),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=4),
    ends=st.lists(st.integers(0, 2**31 - 1), max_size=3),
    least=st.integers(0, 1000),
)
def test_a_worker_reads_what_was_carried(prediction: list[int], stop: list[str], ends: list[int], least: int) -> None:
    sent = Carried(np.array(prediction, np.int32), tuple(stop), tuple(ends), least)
    text = sent.to_id()
    assert text == text.strip() != sent.to_id()  # TensorRT-LLM strips ids, and no two requests may share one
    found = Carried.of(request_with(text))
    assert found.prediction.tolist() == prediction and found.prediction.dtype == np.int32
    assert (found.stop, found.end_tokens, found.min_tokens) == (tuple(stop), tuple(ends), least)
    assert found.worth_it == bool(prediction or stop or ends)


@pytest.mark.parametrize(
    "request_", [SimpleNamespace(), SimpleNamespace(py_conversation_params=None), request_with("a"), request_with(None)]
)
def test_what_others_carry_is_theirs(request_: Any) -> None:
    assert not Carried.of(request_).worth_it


class Letters:
    """A decoder whose tokens are letters, by their code points."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def flush(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("carried", "end"),
    [
        (Carried(stop=("cd",)), 4),
        (Carried(stop=("de", "cd")), 4),
        (Carried(stop=("xyz",)), None),
        (Carried(stop=("ab",), min_tokens=3), 8),
        (Carried(end_tokens=(ord("c"),)), 3),
        (Carried(stop=("b",), end_tokens=(ord("c"),)), 2),
        (Carried(), None),
    ],
)
def test_where_the_serving_side_ended_it(carried: Carried, end: int | None) -> None:
    assert carried.end_of([ord(c) for c in "abcdefabcd"], Letters()) == end


@pytest.mark.parametrize(("line", "ranks"), [("1.3", 1), ("1.4", 1), ("1.3", 2)])
def test_a_prediction_is_a_source_of_drafts(line: str, ranks: int, open_engine: Open, reference: Engine) -> None:
    engine = open_engine(line, tensorrt_llm={"tensor_parallel_size": ranks})
    wanted = reference.generate(FIRST, **PARAMS)
    prediction = [t.token for t in wanted.tokens]
    plain = engine.generate(FIRST, **PARAMS)
    done = engine.generate(FIRST, **PARAMS, prediction=prediction)
    assert done.text == plain.text == wanted.text
    assert done.finish is not None and plain.finish is not None
    source = done.finish.stats.sources["prediction"]
    assert 0 < source.accepted <= source.proposed
    assert done.finish.stats.rounds < plain.finish.stats.rounds
    assert engine.metrics()["accepted_tokens_total"]["prediction"] == source.accepted
    assert worker(engine).error is None
    # Without copies nothing is taken along, and a request's own text is nobody else's.
    for arguments in ({"prediction": prediction, "lookup": False}, {}):
        again = engine.generate(FIRST, **PARAMS, **arguments)
        assert again.finish is not None and again.finish.stats.sources["prediction"].proposed == 0


def test_a_wrong_prediction_changes_speed_alone(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3")
    wanted = reference.generate(REPEAT, **LONG)
    prediction = [(t.token + 1) % 200 + 2 for t in wanted.tokens]
    assert engine.generate(REPEAT, **LONG, prediction=prediction).text == wanted.text


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_stop_string_ended_is_kept_up_to_its_end(ranks: int, open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3", speculative=CACHE, tensorrt_llm={"tensor_parallel_size": ranks})
    whole = reference.generate(FIRST, **PARAMS)
    stop = whole.text[-8:-6]
    assert whole.text.index(stop) > 10
    first = engine.generate(FIRST, **PARAMS, stop=(stop,), scope=ALICE)
    assert first.finish is not None and first.finish.reason == "stop" and first.finish.stop == stop
    kept = len(engine.tokens(FIRST)) + len(first.tokens)
    # The executor ran on until it was told; what it made then is not the request's.
    assert [shared_cache(engine, r).tokens for r in range(ranks)] == [kept] * ranks
    other = engine.generate(FIRST, **PARAMS, stop=(stop,), scope=BOB)
    second = engine.generate(FIRST, **PARAMS, stop=(stop,), scope=ALICE)
    assert other.finish is not None and other.finish.stats.sources["shared"].proposed == 0
    assert second.finish is not None and second.finish.stats.sources["shared"].accepted > 0
    assert second.text == first.text
    assert worker(engine).error is None


def test_min_tokens_hold_a_stop_string_back(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3", speculative=CACHE)
    whole = reference.generate(FIRST, **PARAMS)
    arguments: dict[str, Any] = {**PARAMS, "min_tokens": 8, "stop": (whole.text[3],)}
    wanted, done = (e.generate(FIRST, **arguments, scope=ALICE) for e in (reference, engine))
    assert done.text == wanted.text and done.finish is not None
    assert shared_cache(engine).tokens == len(engine.tokens(FIRST)) + len(done.tokens)


def test_a_cancelled_generation_with_stop_strings_leaves_nothing(open_engine: Open) -> None:
    engine = open_engine("1.3", speculative=CACHE)
    generation = engine.submit(REPEAT, **{**LONG, "max_tokens": 200}, stop=("never in there",), scope=ALICE)
    events = iter(generation)
    next(events)
    generation.cancel()
    assert [e.reason for e in events if isinstance(e, Finish)] == ["cancelled"]
    assert shared_cache(engine).documents == 0


@pytest.mark.parametrize("lacking", ["parameter", "class"])
def test_a_version_without_conversation_parameters_carries_nothing(
    lacking: str, open_engine: Open, reference: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(llm: Any) -> Any:
        if lacking == "class":
            monkeypatch.setitem(sys.modules, "tensorrt_llm.conversation_params", None)
            return find_carrier(llm)
        generate = SimpleNamespace(generate_async=lambda inputs, sampling_params=None, cache_salt=None: None)
        assert "conversation_params" in inspect.signature(llm.generate_async).parameters
        return find_carrier(generate)

    monkeypatch.setattr("trtserve.engine.tensorrt_llm.find_carrier", find)
    engine = open_engine("1.3", speculative=CACHE)
    whole = reference.generate(FIRST, **PARAMS)
    arguments: dict[str, Any] = {**PARAMS, "max_tokens": 200, "stop": (whole.text[10:12],)}
    prediction = [t.token for t in whole.tokens]
    wanted, done = (e.generate(FIRST, **arguments, prediction=prediction) for e in (reference, engine))
    assert done.finish is not None and done.finish.reason == "stop" and done.text == wanted.text
    assert done.finish.stats.sources["prediction"].proposed == 0
    assert shared_cache(engine).documents == 0


def test_ids_say_nothing_of_their_scope(open_engine: Open) -> None:
    """What rides along is the request's own: no salt, tenant or secret of the process."""
    engine = open_engine("1.3")
    seen: list[str] = []
    carrier = engine.engine._carrier  # type: ignore[attr-defined]
    engine.engine._carrier = lambda text: seen.append(text) or carrier(text)  # type: ignore[attr-defined]
    engine.generate(REPEAT, **LONG, scope=Scope(tenant="alice", salt="pepper"))
    assert not seen
    engine.generate(REPEAT, **LONG, scope=Scope(tenant="alice", salt="pepper"), prediction=[3, 4], stop=("\n",))
    (text,) = seen
    assert "alice" not in text and "pepper" not in text
    assert json.loads(text.removeprefix(module._PREFIX))[2:] == [["\n"], [], 0]
