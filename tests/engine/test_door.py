"""The front door by itself: who comes in, when to come back, who is waited for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.engine.door import FrontDoor
from trtserve.engine.protocol import EngineClosedError, GenerationRequest, QueueFullError, RequestError, Scope
from trtserve.engine.sequence import Sequence
from trtserve.sampling import SamplingParams


def make_door(**options: Any) -> FrontDoor:
    return FrontDoor(**{"vocab_size": 100, "max_seq_len": 32, "slots": 2, "max_queue": 2, **options})


def nothing(_: Sequence) -> None:
    pass


def come_in(door: FrontDoor, prompt: tuple[int, ...] = (1, 2, 3)) -> Sequence:
    sequence = door.check(GenerationRequest(prompt, SamplingParams(max_tokens=4)), nothing)
    door.enter(sequence, nothing)
    return sequence


def test_a_checked_request_is_a_sequence_whose_generation_cancels() -> None:
    cancelled: list[Sequence] = []
    request = GenerationRequest((1, 2, 3), SamplingParams(), prediction=(4, 5))
    sequence = make_door().check(request, cancelled.append)
    assert sequence.prompt.tolist() == [1, 2, 3] and sequence.prediction.tolist() == [4, 5]
    assert sequence.budget == 29
    sequence.generation.cancel()
    assert cancelled == [sequence]


def test_of_a_prediction_no_more_is_used_than_the_context_holds() -> None:
    request = GenerationRequest((1, 2, 3), SamplingParams(), prediction=[7] * 1000)
    assert make_door().check(request, nothing).prediction.tolist() == [7] * 32


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": (1, 100)}, "prompt"),
        ({"prediction": (-1,)}, "prediction"),
        ({"params": SamplingParams(max_tokens=99)}, "max_tokens"),
        ({"params": SamplingParams(stop_token_ids=(100,))}, "stop_token_ids"),
        ({"scope": Scope(tenant="\ud800")}, "scope"),
    ],
)
def test_what_is_refused_is_not_inside(fields: dict[str, Any], param: str) -> None:
    door = make_door()
    with pytest.raises(RequestError) as e:
        door.check(GenerationRequest(**{"prompt": (1,), "params": SamplingParams(), **fields}), nothing)
    assert e.value.param == param
    assert door.num_inside == 0


def test_slots_and_queue_together_bound_who_is_inside() -> None:
    door = make_door(slots=1, max_queue=2)
    inside = [come_in(door) for _ in range(3)]
    with pytest.raises(QueueFullError, match="2 requests are waiting already"):
        come_in(door)
    door.leave(inside[:1])
    come_in(door)
    assert door.num_inside == 3 and set(inside[1:]) < set(door.inside())


@pytest.mark.parametrize(
    ("seconds", "slots", "expected"), [(0.1, 2, 1), (10.0, 2, 5), (9.0, 2, 5), (1e6, 2, 60), (8.0, 8, 1)]
)
def test_when_to_come_back_follows_what_requests_take(seconds: float, slots: int, expected: int) -> None:
    door = make_door(slots=slots)
    for _ in range(100):
        door.served(seconds)
    assert door.retry_after == expected
    for _ in range(slots + 2):
        come_in(door)
    with pytest.raises(QueueFullError) as e:
        come_in(door)
    assert e.value.retry_after == expected


def test_a_sequence_is_started_before_anybody_can_cancel_it() -> None:
    door, told = make_door(), []
    sequence = door.check(GenerationRequest((1,), SamplingParams()), nothing)
    drains: list[threading.Thread] = []

    def start(started: Sequence) -> None:
        drains.append(threading.Thread(target=door.drain, args=(0, lambda s: told.append(("cancel", s)))))
        drains[0].start()
        drains[0].join(0.1)
        told.append(("start", started))

    door.enter(sequence, start)
    drains[0].join(10)
    assert told == [("start", sequence), ("cancel", sequence)]


def test_draining_waits_for_the_last_to_leave() -> None:
    door = make_door()
    inside = [come_in(door), come_in(door)]
    cancelled: list[Sequence] = []
    outcome: list[bool] = []
    drainer = threading.Thread(target=lambda: outcome.append(door.drain(None, cancelled.append)))
    drainer.start()
    while not door.draining:
        pass
    with pytest.raises(EngineClosedError, match="shutting down"):
        come_in(door)
    door.leave(inside[:1])
    drainer.join(0.05)
    assert not outcome
    door.leave(inside[1:])
    drainer.join(10)
    assert outcome == [True] and not cancelled


def test_a_drain_that_runs_out_of_time_cancels_who_is_inside() -> None:
    door = make_door()
    inside = {come_in(door), come_in(door)}
    cancelled: list[Sequence] = []
    assert door.drain(0, cancelled.append) is False
    assert set(cancelled) == inside


def test_closing_is_done_once() -> None:
    door = make_door()
    assert [door.close(), door.close()] == [True, False]
    assert door.closed
    with pytest.raises(EngineClosedError, match="shutting down"):
        come_in(door)


def test_after_a_crash_the_reason_is_told() -> None:
    door = make_door()
    door.crashed(RuntimeError("no memory"))
    assert not door.healthy and str(door.crash) == "no memory"
    with pytest.raises(EngineClosedError, match="internal error: no memory"):
        come_in(door)


def test_three_failures_in_a_row_are_unhealthy_until_a_success() -> None:
    door = make_door()
    for _ in range(2):
        door.failed()
    assert door.healthy
    door.failed()
    assert not door.healthy
    door.succeeded()
    assert door.healthy


def test_what_came_to_its_own_end_is_recorded() -> None:
    told: list[tuple[Scope, list[list[int]]]] = []

    def recorder(scope: Scope, *tokens: NDArray[np.int32]) -> None:
        told.append((scope, [t.tolist() for t in tokens]))

    door = make_door(recorder=recorder)
    sequence = door.check(GenerationRequest((1, 2), SamplingParams(), Scope("t"), prediction=(9,)), nothing)
    sequence._tokens[2:4] = (3, 4)
    sequence.num_tokens = 4
    for reason in ("cancelled", "error", "stop", "length"):
        door.record(sequence, reason)  # type: ignore[arg-type]
    assert told == [(Scope("t"), [[1, 2], [3, 4], [9]])] * 2


def test_a_recorder_that_fails_is_told_of_no_other_and_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Scope] = []

    def recorder(scope: Scope, *tokens: NDArray[np.int32]) -> None:
        told.append(scope)
        raise RuntimeError("no room")

    door = make_door(recorder=recorder)
    for _ in range(2):
        door.record(come_in(door), "stop")
    assert len(told) == 1 and caplog.text.count("the recorder failed") == 1
