"""The text is the same whatever drafts, whoever else is in the batch and whenever a request arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest
from trtserve.sampling import SamplingParams

from .toy import EOS, OracleDrafter, ToyDrafter, ToyExecutor, WrongDrafter, collect, reference, token_ids
from .workload import at_odd_moments, check, workload

Make = Callable[..., LocalEngine]


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    return workload()


@pytest.fixture(scope="module")
def expected(requests: list[GenerationRequest]) -> list[list[int]]:
    return [reference(list(r.prompt), r.params) for r in requests]


def drafter_named(name: str, requests: list[GenerationRequest], expected: list[list[int]]) -> ToyDrafter | None:
    if name == "oracle":
        return OracleDrafter({tuple(r.prompt): text for r, text in zip(requests, expected, strict=True)})
    return {"off": None, "copies": ToyDrafter(), "wrong": WrongDrafter()}[name]


def test_workload_ends_in_every_way(expected: list[list[int]]) -> None:
    ends = [tokens[-1] == EOS for tokens in expected]
    assert len(expected) == 200 and 10 < sum(ends) < 190


@pytest.mark.parametrize("name", ["off", "copies", "wrong", "oracle"])
def test_one_at_a_time(
    name: str, make_engine: Make, requests: list[GenerationRequest], expected: list[list[int]]
) -> None:
    drafter = drafter_named(name, requests, expected)
    engine = make_engine(drafter=drafter)
    check([collect(engine.submit(r)) for r in requests], expected)
    stats = engine.metrics()
    drafts, accepted = stats["draft_tokens_total"]["history"], stats["accepted_tokens_total"]["history"]
    if name == "off":
        assert drafts == 0 and stats["rounds_total"] == sum(map(len, expected))
    elif name == "copies":
        assert 0 < accepted < drafts
    elif name == "wrong":
        assert accepted == 0 < drafts and stats["rounds_total"] == sum(map(len, expected))
    else:
        assert accepted == drafts > 0
        assert stats["rounds_total"] == sum(-(-len(tokens) // 9) for tokens in expected)
    assert stats["generation_tokens_total"] == sum(map(len, expected))


@pytest.mark.parametrize("name", ["off", "copies", "wrong", "oracle"])
@pytest.mark.parametrize("max_batch_size", [2, 8])
def test_together_arriving_at_odd_moments(
    name: str,
    max_batch_size: int,
    make_engine: Make,
    requests: list[GenerationRequest],
    expected: list[list[int]],
) -> None:
    engine = make_engine(
        drafter=drafter_named(name, requests, expected),
        limits={"max_batch_size": max_batch_size},
        lookup={"max_seqs": 4},
    )
    executor = engine._executor
    assert isinstance(executor, ToyExecutor)
    check(at_odd_moments(engine, requests), expected)
    assert {len(rows) for rows in executor.rows_seen} == set(range(1, max_batch_size + 1))
    if name != "off":
        assert all(max(rows) == 1 for rows in executor.rows_seen if len(rows) > 4)
        assert any(max(rows) > 1 for rows in executor.rows_seen if len(rows) == 2)


def test_generate_twice_gives_the_same(make_engine: Make, requests: list[GenerationRequest]) -> None:
    engine = make_engine()
    for request in requests[::20]:
        first, second = collect(engine.submit(request)), collect(engine.submit(request))
        assert token_ids(first) == token_ids(second) and first.text == second.text


def test_without_a_seed_two_samples_differ(make_engine: Make) -> None:
    engine = make_engine()
    request = GenerationRequest([1, 2, 3], SamplingParams(temperature=2.0, max_tokens=40, ignore_eos=True))
    assert token_ids(collect(engine.submit(request))) != token_ids(collect(engine.submit(request)))


def test_logprobs_are_those_of_a_run_without_drafts(make_engine: Make, requests: list[GenerationRequest]) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, logprobs=3, ignore_eos=True)
    prompt = requests[1].prompt
    off = collect(make_engine(drafter=None).submit(GenerationRequest(prompt, params)))
    on = collect(make_engine().submit(GenerationRequest(prompt, params)))
    assert any(t.source == "history" for t in on.tokens)
    assert [(t.token, t.logprob, t.top_logprobs) for t in on.tokens] == [
        (t.token, t.logprob, t.top_logprobs) for t in off.tokens
    ]
    assert all(t.logprob is not None and t.logprob < 0 and len(t.top_logprobs) == 3 for t in on.tokens)
