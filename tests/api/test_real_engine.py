"""The API over the real engine with a tiny random model: the client sees what the engine does, lookup on or off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.tiny.engine import write_tiny_engine
from trtserve.api.auth import TokenAuth
from trtserve.api.context import ApiConfig, ServerContext
from trtserve.loading import load_engine
from trtserve.overrides import Overrides

from .conftest import Served, serving
from .test_disconnect import send
from .test_operations import samples


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")
    engine, tokenizer = load_engine(directory, Overrides(threads=1, prompt_lookup_shared_cache_mb=1, max_queue=8))
    with serving(ServerContext(engine, tokenizer, ApiConfig())) as served:
        yield served


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Served]:
    """A server of two tenants, alice and bob, with a shared cache."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("alice: alice-token-0123456789\nbob: bob-token-0123456789\n")
    tokens.chmod(0o600)
    engine, tokenizer = load_engine(
        write_tiny_engine(tmp_path / "tiny"), Overrides(threads=1, prompt_lookup_shared_cache_mb=1)
    )
    with serving(ServerContext(engine, tokenizer, ApiConfig(), TokenAuth(tokens))) as served:
        yield served


@pytest.fixture
def client(tiny: Served) -> Iterator[openai.OpenAI]:
    with tiny.client() as made:
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def idle(served: Served) -> bool:
    metrics = served.engine.metrics()
    return metrics["requests_running"] == metrics["requests_waiting"] == 0


def complete(client: openai.OpenAI, prompt: str, **options: Any) -> Any:
    extra = {"ignore_eos": True, **options.pop("extra", {})}
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=40, extra_body=extra, **options)


PROMPT = "the cat sat on the mat and the cat sat on the hat and the "


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "seed": 11}])
def test_text_is_the_same_with_lookup_on_and_off_and_streamed(client: openai.OpenAI, options: dict[str, Any]) -> None:
    on = complete(client, PROMPT, **options)
    off = complete(client, PROMPT, **options, extra={"prompt_lookup": False})
    assert on.choices[0].text == off.choices[0].text
    assert off.model_extra["prompt_lookup"]["sources"] == {}
    assert off.model_extra["prompt_lookup"]["tokens_per_round"] == 1.0
    assert on.usage.completion_tokens == off.usage.completion_tokens == 40
    streamed = complete(client, PROMPT, stream=True, **options)
    assert "".join(c.choices[0].text for c in streamed) == on.choices[0].text


def test_the_right_prediction_is_accepted_and_changes_nothing(tiny: Served) -> None:
    # As tokens, because bytes of a random model's text may not survive being text.
    ask = {"messages": [{"role": "user", "content": "say something"}], "max_tokens": 40, "temperature": 0,
           "ignore_eos": True, "logit_bias": {str(t): -100 for t in range(258) if not 34 <= t <= 94}}  # fmt: skip
    plain = tiny.post("/v1/chat/completions", json={**ask, "prompt_lookup": False}).json()
    text = plain["choices"][0]["message"]["content"]
    assert len(text) == 40 and text.isascii()
    told = tiny.post("/v1/chat/completions", json={**ask, "prediction": {"type": "content", "content": text}}).json()
    assert told["choices"][0]["message"]["content"] == text
    details = told["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 10
    assert told["prompt_lookup"]["rounds"] < 40
    told_more = {
        **ask,
        "prediction": {"type": "content", "content": text},
        "cache_salt": "a scope whose shared cache has not seen the text",
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    with tiny.client() as client:
        create: Any = client.chat.completions.create
        chunks = list(create(model="tiny", messages=ask["messages"], stream=True, extra_body=told_more))
    accepted = [c.usage.completion_tokens_details.accepted_prediction_tokens for c in chunks]
    assert accepted[0] == 0 and accepted == sorted(accepted)
    # What is counted on the way is what the engine says at the end.
    assert accepted[-3:] == [details["accepted_prediction_tokens"]] * 3
    assert [c.usage.completion_tokens for c in chunks[-3:]] == [40] * 3


def test_a_seed_repeats_and_choices_differ(client: openai.OpenAI) -> None:
    first = complete(client, "abc", temperature=1.5, seed=3, n=3)
    again = complete(client, "abc", temperature=1.5, seed=3, n=3)
    texts = [c.text for c in first.choices]
    assert texts == [c.text for c in again.choices]
    assert len(set(texts)) == 3


def test_logprobs_of_the_chosen_token_lead_when_greedy(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        temperature=0,
        max_tokens=12,
        logprobs=True,
        top_logprobs=3,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == 12
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].bytes == entry.bytes
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert entry.logprob < 0


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    whole = complete(client, PROMPT, temperature=0).choices[0].text
    stop = whole[10:12]
    cut = complete(client, PROMPT, temperature=0, stop=[stop]).choices[0]
    assert cut.text == whole[: whole.index(stop)] and cut.finish_reason == "stop"
    assert cut.model_extra["stop_reason"] == stop


def test_a_repeated_prompt_is_not_prefilled_again(client: openai.OpenAI) -> None:
    prompt = "a prompt that nobody has sent before, of some length"
    complete(client, prompt, temperature=0)
    assert complete(client, prompt, temperature=0).usage.prompt_tokens_details.cached_tokens > 30


def test_many_requests_at_once_give_what_each_gives_alone(client: openai.OpenAI) -> None:
    prompts = [f"prompt number {i % 5}" for i in range(12)]
    alone = {p: complete(client, p, temperature=0).choices[0].text for p in set(prompts)}
    with ThreadPoolExecutor(12) as pool:
        for prompt, text in zip(
            prompts, pool.map(lambda p: complete(client, p, temperature=0).choices[0].text, prompts), strict=True
        ):
            assert text == alone[prompt]


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_cancels_in_the_engine(tiny: Served, stream: bool) -> None:
    before = tiny.engine.metrics()["finished_total"].get("cancelled", 0)
    # Far more work than it takes to notice a closed connection: only a cancellation ends it early.
    body = {"prompt": "x" * 8, "max_tokens": 240, "n": 8, "ignore_eos": True, "stream": stream}
    connection = send(tiny, "/v1/completions", body)
    wait_for(lambda: tiny.engine.metrics()["requests_running"] == 4)
    connection.close()
    wait_for(lambda: tiny.engine.metrics()["finished_total"].get("cancelled", 0) > before)
    wait_for(lambda: idle(tiny))
    assert tiny.post("/v1/completions", json={"prompt": "y", "max_tokens": 2}).status_code == 200


def test_one_tenants_text_is_never_proposed_or_reused_for_another(tenants: Served) -> None:
    # Nothing in it repeats, and it is long enough to be worth reusing.
    prompt = "".join(map(chr, range(48, 96)))

    def ask(who: str, **extra: Any) -> tuple[int, int, str]:
        """(drafts from the shared cache, prompt tokens reused, text)"""
        with tenants.client(f"{who}-token-0123456789") as client:
            answer = complete(client, prompt, temperature=0, extra=extra)
        shared = answer.model_extra["prompt_lookup"]["sources"].get("shared", {"proposed": 0})
        return shared["proposed"], answer.usage.prompt_tokens_details.cached_tokens, answer.choices[0].text

    proposed, cached, text = ask("alice")
    assert (proposed, cached) == (0, 0)
    assert ask("bob") == (0, 0, text)
    proposed, cached, again = ask("alice")
    assert proposed > 0 and cached > 0 and again == text
    # A salt narrows a scope further, within the tenant.
    assert ask("alice", cache_salt="elsewhere") == (0, 0, text)


def test_engine_errors_are_bad_requests(tiny: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        complete(client, "x", logit_bias={"9999": 1})
    with pytest.raises(openai.BadRequestError, match="min_tokens"):
        complete(client, "x", extra={"min_tokens": 41})
    with pytest.raises(openai.BadRequestError, match="255"):
        client.completions.create(model="tiny", prompt="x" * 256)
    assert tiny.get("/health").status_code == 200


def test_metrics_agree_with_what_was_done(tiny: Served, client: openai.OpenAI) -> None:
    name = ("trtserve_generation_tokens_total", ())
    before = samples(tiny.get("/metrics").text)
    complete(client, PROMPT, temperature=0)
    after = samples(tiny.get("/metrics").text)
    assert after[name] - before[name] == 40
    assert after["trtserve_shared_cache_budget_bytes", ()] == 1 << 20
    assert 0 < after["trtserve_shared_cache_bytes", ()] <= 1 << 20
    assert after["trtserve_num_requests_running", ()] == 0
