"""Chat completions through the real client."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from .conftest import Served


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_answers_with_usage_and_draft_statistics(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=say("hello"))
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "scripted"
    assert answer.system_fingerprint and answer.system_fingerprint.startswith("fp_")
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "user:hello", "stop")
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 10, 20)
    assert usage.prompt_tokens_details.cached_tokens == 1
    assert answer.model_extra is not None
    lookup = answer.model_extra["prompt_lookup"]
    assert lookup["rounds"] == 4
    assert lookup["tokens_per_round"] == 2.5
    assert lookup["rounds_skipped"] == 1
    assert lookup["window"] == 4
    assert lookup["sources"] == {"history": {"proposed": 8, "accepted": 6}}


def test_an_alias_and_no_model_at_all_are_served(shared: Served, client: openai.OpenAI) -> None:
    assert client.chat.completions.create(model="alias", messages=say("x")).model == "scripted"
    assert shared.post("/v1/chat/completions", json={"messages": say("x")}).status_code == 200


def test_streams_role_text_end_and_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=say("hello"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "user:hello"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert all(c.usage is None for c in chunks[:-1])
    last = chunks[-1]
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 10
    assert last.model_extra is not None and last.model_extra["prompt_lookup"]["rounds"] == 4
    assert len({c.id for c in chunks}) == 1


def test_a_stream_is_server_sent_events_that_end_with_done(shared: Served) -> None:
    response = shared.post("/v1/chat/completions", json={"messages": say("hi"), "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("chatcmpl-")
    events = response.text.split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]"
    for event in events[:-2]:
        chunk = json.loads(event.removeprefix("data: "))
        assert chunk["object"] == "chat.completion.chunk"
        assert "usage" not in chunk


def test_characters_of_several_bytes_are_never_split(client: openai.OpenAI) -> None:
    text = "a€ü漢字🙂"
    stream = client.chat.completions.create(model="scripted", messages=say(text), stream=True)
    pieces = [c.choices[0].delta.content or "" for c in stream]
    assert "".join(pieces) == f"user:{text}"
    assert not any("\ufffd" in p for p in pieces)


def test_stop_strings_and_their_report(client: openai.OpenAI) -> None:
    for stop in ("ll", ["zz", "ll"]):
        answer = client.chat.completions.create(model="scripted", messages=say("hello"), stop=stop)
        assert answer.choices[0].message.content == "user:he"
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_output_limit(client: openai.OpenAI, field: str) -> None:
    options: dict[str, Any] = {field: 4}
    answer = client.chat.completions.create(model="scripted", messages=say("hello"), **options)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("user", "length")


def test_minus_one_is_no_top_k_as_in_vllm(shared: Served) -> None:
    assert shared.post("/v1/chat/completions", json={"messages": say("x"), "top_k": -1}).status_code == 200
    assert shared.engine.requests[-1].params.top_k == 0
    assert shared.post("/v1/chat/completions", json={"messages": say("x"), "top_k": -2}).status_code == 400


def test_null_means_not_given_at_any_depth(shared: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "x", "name": None, "tool_calls": None}],
        "stream": True,
        "stream_options": {"include_usage": None},
        "prediction": None,
        "metadata": None,
    }
    response = shared.post("/v1/chat/completions", json=body)
    assert response.status_code == 200 and '"usage"' not in response.text
    assert shared.post("/v1/chat/completions", json={**body, "prediction": {"type": None}}).status_code == 400


def test_sampling_fields_reach_the_engine(shared: Served, client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model="scripted",
        messages=say("x"),
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        logit_bias={"65": -100, "66": 3},
        seed=7,
        stop=["q"],
        user="someone",
        extra_body={
            "top_k": 5,
            "min_p": 0.05,
            "repetition_penalty": 1.2,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [3],
            "include_stop_str_in_output": True,
            "cache_salt": "pepper",
            "prompt_lookup": False,
        },
    )
    request = shared.engine.requests[-1]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 5, 0.05)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.2, 0.1, -0.2)
    assert params.logit_bias == {65: -100, 66: 3}
    assert (params.seed, params.stop, params.stop_token_ids) == (7, ("q",), (3,))
    assert (params.min_tokens, params.ignore_eos, params.include_stop_str_in_output) == (2, True, True)
    assert params.logprobs is None and params.max_tokens is None
    assert request.scope.salt == "pepper" and request.scope.tenant == ""
    assert request.lookup is False


def test_several_choices_have_seeds_of_their_own(shared: Served, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=say("x"), n=3, seed=2**64 - 2)
    texts = [c.message.content for c in answer.choices]
    seeds = [2**64 - 2, 2**64 - 1, 0]
    assert texts == [f"[seed {s}]user:x" for s in seeds]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    alone = client.chat.completions.create(model="scripted", messages=say("x"), seed=2**64 - 2)
    assert alone.choices[0].message.content == texts[0]
    assert answer.usage is not None and alone.usage is not None
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == sum(len(t or "") for t in texts)
    assert answer.model_extra is not None and answer.model_extra["prompt_lookup"]["window"] is None


def test_several_choices_stream_interleaved(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=say("some words"), n=3, seed=1, stream=True, stream_options={"include_usage": True}
    )
    texts, ends = ["", "", ""], []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert texts == [f"[seed {s}]user:some words" for s in (1, 2, 3)]
    assert sorted(ends) == [0, 1, 2]


def test_every_chunk_has_its_choices_usage_so_far(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            model="scripted",
            messages=say("a€!"),
            n=2,
            seed=9,
            stream=True,
            extra_body={"stream_options": options},
        )
    )
    seen: list[list[Any]] = [[], []]
    for chunk in chunks[:-1]:
        seen[chunk.choices[0].index].append(chunk)
    for own in seen:
        text = ""
        for chunk in own:
            text += chunk.choices[0].delta.content or ""
            usage = chunk.usage
            assert usage.prompt_tokens == 10 and usage.total_tokens == 10 + usage.completion_tokens
            # A round's tokens count when they are made; half a character is shown only with its other half.
            assert 0 <= usage.completion_tokens - len(text.encode()) <= 2
        counts = [chunk.usage.completion_tokens for chunk in own]
        assert counts[0] == 0 and counts == sorted(counts) and counts[-2] == counts[-1]
        assert all("prompt_lookup" not in chunk.model_extra for chunk in own[:-1])
        assert all(chunk.usage.prompt_tokens_details is None for chunk in own[:-1])
        # With its end a choice's account is whole.
        assert own[-1].choices[0].finish_reason == "stop"
        assert own[-1].usage.prompt_tokens_details.cached_tokens == 1
        assert own[-1].model_extra["prompt_lookup"]["window"] == 4
    last = chunks[-1]
    assert last.choices == [] and last.usage is not None and last.model_extra is not None
    ends = [own[-1] for own in seen]
    assert last.usage.completion_tokens == sum(end.usage.completion_tokens for end in ends)
    assert (last.usage.prompt_tokens, last.usage.total_tokens) == (10, 10 + last.usage.completion_tokens)
    rounds = [end.model_extra["prompt_lookup"]["rounds"] for end in ends]
    assert last.model_extra["prompt_lookup"]["rounds"] == sum(rounds)


def test_logprobs_carry_bytes_and_alternatives(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted", messages=say("ü"), logprobs=True, top_logprobs=2, max_tokens=7
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [t.bytes for t in logprobs.content] == [[b] for b in "user:ü".encode()]
    assert logprobs.content[0].token == "u"
    assert logprobs.content[0].logprob == -0.5
    assert [t.token for t in logprobs.content[0].top_logprobs] == ["u", "A"]
    # The client reads what JSON can carry: a huge negative number stands for minus infinity.
    plain = client.chat.completions.create(model="scripted", messages=say("x"), logprobs=True)
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.content is not None
    assert plain.choices[0].logprobs.content[0].top_logprobs == []


def test_streamed_logprobs_cover_every_token(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=say("漢字"), logprobs=True, top_logprobs=1, stream=True
    )
    raw: list[int] = []
    for chunk in stream:
        logprobs = chunk.choices[0].logprobs
        for entry in (logprobs.content if logprobs else None) or []:
            raw += entry.bytes or []
    assert bytes(raw).decode() == "user:漢字"


def test_predicted_output_is_a_draft_source_and_is_accounted_for(shared: Served, client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    for content in ("abc", parts):
        answer = client.chat.completions.create(
            model="scripted", messages=say("x"), prediction={"type": "content", "content": content}
        )
        assert list(shared.engine.requests[-1].prediction) == list(b"abc")
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (3, 2)


def test_spans_tell_what_was_copied(shared: Served) -> None:
    body = {"messages": say("hello"), "return_spans": True}
    whole = shared.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert "".join(s["text"] for s in whole["spans"]) == whole["message"]["content"]
    assert {s["source"] for s in whole["spans"]} == {"history", None}
    streamed = shared.post("/v1/chat/completions", json={**body, "stream": True}).text
    chunks = [json.loads(e.removeprefix("data: ")) for e in streamed.split("\n\n")[:-2]]
    spans = [s for c in chunks for s in c["choices"][0].get("spans", [])]
    assert "".join(s["text"] for s in spans) == "user:hello"


def test_the_template_sees_roles_parts_tools_and_calls(shared: Served, client: openai.OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    client.chat.completions.create(
        model="scripted",
        messages=messages,
        tools=[tool],
        tool_choice="auto",
        extra_body={"chat_template_kwargs": {"mood": "calm"}, "reasoning_effort": "low"},
    )
    prompt = bytes(shared.engine.requests[-1].prompt).decode()
    assert prompt == (
        "tools: 1\nmood=calm\nreasoning_effort=low\nsystem:be brief\nuser:one\ntwo\nassistant:None[{'a': 1}]\ntool:42"
    )
    client.chat.completions.create(model="scripted", messages=say("x"), tools=[tool], tool_choice="none")
    assert bytes(shared.engine.requests[-1].prompt).decode() == "user:x"


def test_many_at_once_from_one_event_loop(shared: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, i: int) -> str:
        stream = await client.chat.completions.create(model="scripted", messages=say(f"number {i}"), stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def ask_all() -> list[str]:
        async with shared.async_client() as client:
            return await asyncio.gather(*(ask(client, i) for i in range(32)))

    assert asyncio.run(ask_all()) == [f"user:number {i}" for i in range(32)]


def test_many_at_once(client: openai.OpenAI) -> None:
    def ask(i: int) -> tuple[int, str | None]:
        if i % 2:
            stream = client.chat.completions.create(model="scripted", messages=say(f"number {i}"), stream=True)
            return i, "".join(c.choices[0].delta.content or "" for c in stream)
        return i, client.chat.completions.create(model="scripted", messages=say(f"number {i}")).choices[
            0
        ].message.content

    with ThreadPoolExecutor(16) as pool:
        for i, text in pool.map(ask, range(48)):
            assert text == f"user:number {i}"
