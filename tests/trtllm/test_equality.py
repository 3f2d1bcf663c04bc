"""Text through TensorRT-LLM's adapters is our own engine's, whatever drafts and whoever else is in the batch."""

from __future__ import annotations

from typing import Any

import pytest

from trtserve import Engine
from trtserve.engine.protocol import Completion, GenerationRequest, Scope
from trtserve.sampling import SamplingParams

from .conftest import Open, verify_executor, worker

PROMPTS = [
    "x = foo(a); y = foo(a); z = foo(",
    '{"a": 1, "b": 2} -> {"a": 1, ' * 2,
    "the cat and the cat and the",
    "hello",
    "é😀é😀",
    "abcabcabcabc",
]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 40},
    {"temperature": 0, "max_tokens": 24, "ignore_eos": True},
    {"temperature": 0, "max_tokens": 20, "min_tokens": 6, "logit_bias": {1: 4.0, 40: -100.0}},
    {"temperature": 0, "max_tokens": 30, "stop": ("a",)},
    {"temperature": 0, "max_tokens": 30, "stop_token_ids": (70, 71, 80, 90)},
]
SEEDED: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 3, "max_tokens": 32},
    {"temperature": 1.1, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "max_tokens": 32},
]


def collect(engine: Engine, requests: list[GenerationRequest]) -> list[Completion]:
    """All requests at once."""
    return [Completion.collect(g) for g in [engine.engine.submit(r) for r in requests]]


def requests_of(engine: Engine, kinds: list[dict[str, Any]]) -> list[GenerationRequest]:
    return [
        GenerationRequest(list(engine.tokens(text)), SamplingParams(**kind), Scope(tenant="t"))
        for text in PROMPTS
        for kind in kinds
    ]


def outcome(done: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.text, [t.token for t in c.tokens], c.finish.reason, c.finish.stop) for c in done]


@pytest.mark.parametrize("line", ["1.2", "1.3", "1.4"])
@pytest.mark.parametrize("shared", [0, 1])
def test_text_equals_our_engines(line: str, shared: int, open_engine: Open, reference: Engine) -> None:
    # Every verify of 1.2 starts its random numbers anew, so only its greedy text is comparable.
    kinds = KINDS if line == "1.2" else KINDS + SEEDED
    requests = requests_of(reference, kinds)
    expected = outcome(collect(reference, requests))
    assert len(expected) == len(requests) and any(e[2] == "stop" for e in expected)
    engine = open_engine(line, speculative={"prompt_lookup": {"shared_cache": {"mb": shared, "scopes": 2}}})
    for request, wanted in zip(requests, expected, strict=True):
        assert outcome(collect(engine, [request])) == [wanted]
    assert outcome(collect(engine, requests)) == expected
    metrics = engine.metrics()
    drafts, accepted = sum(metrics["draft_tokens_total"].values()), sum(metrics["accepted_tokens_total"].values())
    assert 0 < accepted < drafts
    assert metrics["generation_tokens_total"] == 2 * sum(len(e[1]) for e in expected)
    assert metrics["prompt_tokens_total"] == 2 * sum(len(r.prompt) for r in requests)
    assert (metrics["draft_tokens_total"]["shared"] > 0) == bool(shared)
    assert metrics["rounds_total"] < metrics["generation_tokens_total"]
    assert metrics["requests_running"] == metrics["requests_waiting"] == 0


def test_sources_tell_copied_tokens_from_the_models_own(open_engine: Open) -> None:
    engine = open_engine("1.3")
    done = engine.generate("abcabcabcabcabc", temperature=0, max_tokens=60, ignore_eos=True)
    stats = done.finish.stats.sources["history"]
    copied = [t for t in done.tokens if t.source == "history"]
    assert 0 < len(copied) == stats.accepted <= stats.proposed
    assert done.finish.stats.rounds == len(done.tokens) - stats.accepted
    assert done.finish.stats.completion_tokens == 60
    fake = worker(engine)
    # Each round but the first, which samples the prompt's last row, was announced before its forward.
    assert engine.metrics()["rounds_total"] == sum(map(bool, fake.drafted)) == len(fake.forwards) - 1
    assert sum(len(d) for r in fake.drafted for d in r.values()) == stats.proposed


def test_local_engine_and_adapter_copy_alike(open_engine: Open, reference: Engine) -> None:
    """1.2's verify requests run under our scheduler: one sequence's drafts are those of every other executor."""
    engine = open_engine("1.2")
    done = engine.generate("abcabcabcabcabc", temperature=0, max_tokens=60, ignore_eos=True)
    wanted = reference.generate("abcabcabcabcabc", temperature=0, max_tokens=60, ignore_eos=True)
    assert [t.token for t in done.tokens] == [t.token for t in wanted.tokens]
    fake = verify_executor(engine)
    assert done.finish.stats.rounds == len(fake.requests) < 60
    # All but the tail of each prefix was found in reused blocks.
    assert sum(fake.reused) > 0 and fake.reused[-1] >= 32
    assert {
        len(r.external_draft_tokens_config.tokens) + 1 for r in fake.requests if r.external_draft_tokens_config
    } == {r.max_tokens for r in fake.requests if r.external_draft_tokens_config}


@pytest.mark.parametrize(
    ("section", "speculative", "chain"),
    [
        ({"copies": "ngram"}, {}, 8),
        ({"copies": "sa"}, {}, 8),
        ({}, {"drafter": "mtp", "num_drafts": 4, "prompt_lookup": {"max_drafts": 4}}, 4),
        ({}, {"drafter": "mtp", "num_drafts": 2, "prompt_lookup": None}, 2),
    ],
)
def test_built_in_drafts_are_the_models(
    section: dict[str, Any], speculative: dict[str, Any], chain: int, open_engine: Open, reference: Engine
) -> None:
    engine = open_engine("1.3", tensorrt_llm=section, speculative=speculative)
    requests = requests_of(reference, KINDS + SEEDED)
    assert outcome(collect(engine, requests)) == outcome(collect(reference, requests))
    done = engine.generate("abcabcabcabcabc", temperature=0, max_tokens=60, ignore_eos=True)
    stats = done.finish.stats
    model = stats.sources["model"]
    assert model.proposed == chain * (stats.rounds - 1)
    assert 0 < model.accepted == sum(t.source == "model" for t in done.tokens) == 60 - stats.rounds
    assert {rows for f in worker(engine).forwards for rows in f} == {1, chain + 1}
    assert engine.metrics()["draft_tokens_total"]["history"] == 0


def test_logprobs(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3")
    arguments: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "logprobs": 3, "ignore_eos": True}
    done, wanted = engine.generate(PROMPTS[0], **arguments), reference.generate(PROMPTS[0], **arguments)
    for token, other in zip(done.tokens, wanted.tokens, strict=True):
        assert token.logprob == pytest.approx(other.logprob)
        assert [t for t, _ in token.top_logprobs] == [t for t, _ in other.top_logprobs]
