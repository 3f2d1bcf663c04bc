"""Every failure has OpenAI's shape, the right status, and reaches its own request alone."""

from __future__ import annotations

import gzip
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, ValidationError

from trtserve.api import body
from trtserve.api.context import LARGE_BODIES
from trtserve.api.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from trtserve.engine.protocol import EngineClosedError, EngineError, RequestError
from trtserve.sampling import SamplingParams
from trtserve.tokenizer import RenderedTooLongError

from .conftest import Serve, Served

CHAT = "/v1/chat/completions"
SAY: list[Any] = [{"role": "user", "content": "x"}]
JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
        ({"max_tokens": 600}, "max_tokens", "600"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 129}, "n", "128"),
        ({"n": 1.5}, "n", "integer"),
        ({"top_logprobs": 2}, None, "logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"65": 101}}, "logit_bias[65]", "100"),
        ({"stop": ["a"] * 17}, "stop", "stop: has 17 items; allowed: up to 16"),
        ({"stop": [""]}, "stop[0]", "at least 1"),
        ({"stream_options": {"include_usage": True}}, None, "stream: true"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options", "include_usage: true"),
        (
            {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": 1}},
            "stream_options.continuous_usage_stats",
            "boolean",
        ),
        ({"seed": 2**64}, "seed", "less than"),
        ({"messages": []}, "messages", "messages: has 0 items; allowed: at least 1"),
        ({"messages": None}, "messages", "required"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "text parts"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages[0].content",
            "text only",
        ),
        ({"messages": [{"role": "refused", "content": "x"}]}, "messages", "takes no role"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages", "512"),
        ({"temprature": 0}, "temprature", "did you mean temperature?"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"tool_choice": "required"}, None, "tool_choice"),
        ({"functions": [{}]}, "functions", "use tools"),
        ({"chat_template": "{{x}}"}, "chat_template", "template"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "differ"),
        ({"continue_final_message": True}, None, "assistant"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "tools"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "self"),
        ({"prediction": {"type": "content"}}, "prediction.content", "required"),
        (
            {"prediction": {"type": "content", "content": "x", "language": "c"}},
            "prediction",
            "unknown field 'language'",
        ),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "up to 1024"),
        ({"guided_json": {}}, "guided_json", "not supported"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "never cut"),
    ],
)
def test_a_bad_field_is_named(shared: Served, fields: dict[str, Any], param: str | None, says: str) -> None:
    response = shared.post(CHAT, json={"messages": SAY, **fields})
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


MANY = 10_000


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        (ChatBody, {"messages": [1] * MANY}),
        (ChatBody, {"messages": [{"role": "user", "content": "x", "tool_calls": [1] * MANY}]}),
        (ChatBody, {"messages": SAY, "tools": [1] * MANY}),
        (ChatBody, {"messages": SAY, "stop": [1] * MANY}),
        (ChatBody, {"messages": SAY, "stop_token_ids": ["1"] * MANY}),
        (ChatBody, {"messages": SAY, "logit_bias": {str(i): "1" for i in range(MANY)}}),
        (ChatBody, {"messages": SAY, "prediction": {"type": "content", **{f"x{i}": 1 for i in range(MANY)}}}),
        (ChatBody, {"messages": SAY, "stream": True, "stream_options": {f"x{i}": 1 for i in range(MANY)}}),
        (CompletionBody, {"prompt": [[1], *[["x"]] * MANY]}),
        (TokenizeBody, {"messages": [1] * MANY}),
        (DetokenizeBody, {"tokens": ["1"] * MANY}),
        (SamplingParams, {"stop": [""] * MANY}),
        (SamplingParams, {"stop_token_ids": [-1] * MANY}),
    ],
)
def test_of_many_wrong_items_the_first_is_reported(schema: type[BaseModel], fields: dict[str, Any]) -> None:
    """A report of each would take a thousand times the memory of the body."""
    with pytest.raises(ValidationError) as refused:
        schema.model_validate(fields)
    assert refused.value.error_count() <= 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_large_body_is_checked_like_a_small_one(shared: Served, path: str) -> None:
    large = {"metadata": {"pad": "x" * (1 << 17)}, "messages": SAY} if "chat" in path else {"prompt": "x" * (1 << 17)}
    assert error_of(shared.post(path, json={**large, "temperature": -1}))["param"] == "temperature"
    assert error_of(shared.post(path, content=b"{" + b" " * (1 << 17), headers=JSON))["code"] == "invalid_json"
    if "chat" in path:
        assert shared.post(path, json=large).status_code == 200


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": ""}, "empty"),
        ({"prompt": {"a": 1}}, "must be a string"),
        ({"prompt": [1, "a"]}, "must be a string"),
        ({"prompt": [[]]}, "must be a string"),
        ({"prompt": [1, 256]}, "0 to 255"),
        ({"prompt": [-1]}, "outside the vocabulary"),
        ({"prompt": "x", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "insertion"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": ["x"] * 100, "n": 2}, "200"),
        ({"prompt": "x" * 512}, "512"),
        ({}, "prompt"),
    ],
)
def test_a_bad_completion_is_refused(shared: Served, fields: dict[str, Any], says: str) -> None:
    response = shared.post("/v1/completions", json=fields)
    assert response.status_code == 400, response.text
    assert says in error_of(response)["message"]


def test_a_prompt_that_does_not_fit_says_both_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x" * 700}])
    assert caught.value.code == "context_length_exceeded"
    assert "512" in str(caught.value) and "705" in str(caught.value)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="scripted", prompt="x" * 500, max_tokens=13)
    assert caught.value.code == "context_length_exceeded"
    assert "12" in str(caught.value)


HUGE = "x" * 100_000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": HUGE}]}, "messages"),
        ("/v1/completions", {"prompt": HUGE}, "prompt"),
        ("/v1/completions", {"prompt": ["x", HUGE, "y"]}, "prompt"),
        ("/tokenize", {"prompt": HUGE}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": HUGE}]}, "messages"),
    ],
)
def test_a_text_far_too_long_is_refused_without_being_encoded(
    serve: Serve, path: str, body: dict[str, Any], param: str
) -> None:
    served = serve()
    response = served.post(path, json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "512 tokens and the prompt has at least 5000" in error["message"]
    assert served.codec.longest <= 1


def test_of_several_prompts_the_first_too_long_one_ends_the_work(serve: Serve) -> None:
    served = serve(max_choices=12)
    for prompt in (["x", "y" * 600, "z" * 601], [[65], [65] * 600, [-1] * 601]):
        error = error_of(served.post("/v1/completions", json={"prompt": prompt}))
        assert error["code"] == "context_length_exceeded" and "has 600;" in error["message"]
    assert served.codec.longest == 600
    # The number of choices is known before anything is encoded.
    error = error_of(served.post("/v1/completions", json={"prompt": ["x" * 602] * 20}))
    assert error["param"] == "n" and served.codec.longest == 600


def test_more_tokens_than_the_context_holds_are_no_text_of_this_model(shared: Served) -> None:
    assert shared.post("/detokenize", json={"tokens": [65] * 512}).json() == {"prompt": "A" * 512}
    error = error_of(shared.post("/detokenize", json={"tokens": [-1] * 513}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "tokens") and "513" in error["message"]


def test_a_rendering_that_no_context_holds_is_too_long_and_no_fault_of_the_template(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()

    def refuse(*args: Any, **options: Any) -> str:
        raise RenderedTooLongError("the rendered prompt has more than 5 characters")

    monkeypatch.setattr(served.codec, "apply_chat_template", refuse)
    error = error_of(served.post(CHAT, json={"messages": SAY}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_a_prediction_is_encoded_as_far_as_an_output_can_reach(serve: Serve) -> None:
    served = serve()
    body = {"messages": SAY, "prediction": {"type": "content", "content": HUGE}}
    assert served.post(CHAT, json=body).status_code == 200
    assert list(served.engine.requests[-1].prediction) == list(b"x" * 512)
    assert served.codec.longest == 512


def test_harmless_and_neutral_fields_are_accepted(client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model="scripted",
        messages=SAY,
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=False,
        response_format={"type": "text"},
        modalities=["text"],
        user="u",
        extra_body={
            "best_of": 1,
            "skip_special_tokens": True,
            "use_beam_search": False,
            "length_penalty": 1.0,
            "seed": None,
        },
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[1]", "object"),
        (b'{"messages": NaN}', "NaN"),
        (b"\xff\xfe{", "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b'{"model": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"\xed\xa0\x80": 1}', "UTF-8"),
        ('{"model": "\\ud800"}'.encode("utf-16"), "UTF-8"),
        ('{"model": "x"}'.encode("utf-32-le"), "not JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
    ],
)
def test_a_body_that_is_no_json_object(shared: Served, body: bytes, says: str) -> None:
    response = shared.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert says in error_of(response)["message"]
    assert error_of(response)["code"] == "invalid_json"


def test_a_byte_order_mark_is_no_part_of_the_body(shared: Served) -> None:
    body = b"\xef\xbb\xbf" + json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert shared.post(CHAT, content=body, headers={"content-type": "application/json"}).status_code == 200


def test_a_message_stays_short_whatever_it_repeats(shared: Served) -> None:
    response = shared.post(CHAT, json={"messages": SAY, "seed": 10**4000})
    assert response.status_code == 400 and len(error_of(response)["message"]) <= 2000


def test_other_media_types_are_refused(shared: Served) -> None:
    response = shared.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415 and "application/json" in error_of(response)["message"]
    assert shared.post(CHAT, content=b"{}").status_code == 415


def test_a_compressed_body_is_refused_by_its_name(shared: Served) -> None:
    for encoding in ("gzip", "br, gzip", "x" * 99):
        headers = {"content-type": "application/json", "content-encoding": encoding}
        response = shared.post(CHAT, content=gzip.compress(b"{}"), headers=headers)
        assert response.status_code == 415 and encoding[:40] in error_of(response)["message"]
    headers = {"content-type": "application/json", "content-encoding": "Identity"}
    assert shared.post(CHAT, content=json.dumps({"messages": SAY}).encode(), headers=headers).status_code == 200


def test_few_large_bodies_are_parsed_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    checked, lock = body._checked, threading.Lock()
    now = most = 0

    def counted(raw: bytes, schema: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return checked(raw, schema)

    monkeypatch.setattr(body, "_checked", counted)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: served.post("/v1/completions", json={"prompt": HUGE}), range(8)))
    assert {answer.status_code for answer in answers} == {400}
    assert most == LARGE_BODIES


def test_a_body_over_the_limit_is_refused_declared_or_not(serve: Serve) -> None:
    served = serve(max_body_bytes=1000)
    headers = {"content-type": "application/json"}
    declared = served.post(CHAT, content=b" " * 1001, headers=headers)
    assert declared.status_code == 413 and error_of(declared)["code"] == "request_too_large"
    chunked = served.post(CHAT, content=iter([b" " * 600] * 2), headers=headers)
    assert chunked.status_code == 413


def test_unknown_paths_and_methods(shared: Served) -> None:
    missing = shared.get("/v1/nothing")
    assert missing.status_code == 404 and error_of(missing)["code"] == "unknown_url"
    method = shared.get(CHAT)
    assert method.status_code == 405 and error_of(method)["code"] == "method_not_allowed"
    assert method.headers["allow"] == "POST"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=SAY)
    assert caught.value.code == "model_not_found" and "scripted" in str(caught.value)


def test_a_full_queue_says_when_to_come_back(serve: Serve) -> None:
    served = serve(max_queue=1)
    slow = {"messages": [{"role": "user", "content": "SLOW prompt"}], "n": 5}
    with httpx.stream("POST", served.url + CHAT, json={**slow, "stream": True}, timeout=20) as running:
        rest = running.iter_bytes()
        next(rest)
        with served.client() as client, pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="scripted", messages=SAY)
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "3"
        served.engine.release()
        assert b"".join(rest).endswith(b"data: [DONE]\n\n")


def test_choices_that_do_not_all_fit_the_queue_are_all_withdrawn(serve: Serve) -> None:
    served = serve(max_queue=1)
    response = served.post(CHAT, json={"messages": [{"role": "user", "content": "SLOW x"}], "n": 9})
    assert response.status_code == 429
    assert served.engine.wait_idle()
    few = serve(max_queue=1, max_choices=5)
    response = few.post(CHAT, json={"messages": SAY, "n": 6})
    assert response.status_code == 400 and "up to 5" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("token 9 is outside", "prompt"), 400, "invalid_value"),
        (EngineClosedError("closing"), 503, "engine_closed"),
        (EngineError("boom"), 500, "engine_error"),
        (ZeroDivisionError("a bug"), 500, "internal_error"),
    ],
)
def test_what_the_engine_raises(serve: Serve, error: Exception, status: int, code: str) -> None:
    served = serve()
    served.engine.submit_error = error
    response = served.post(CHAT, json={"messages": [{"role": "user", "content": "RAISE"}]})
    assert response.status_code == status
    assert error_of(response)["code"] == code
    assert ("retry-after" in response.headers) == (status == 503)
    # After a bug the HTTP server drops the connection, and says so, or a client would send its next request into it.
    assert (response.headers.get("connection") == "close") == (code == "internal_error")
    assert served.post(CHAT, json={"messages": SAY}).status_code == 200


def test_a_failed_generation_is_an_error_to_its_request_alone(shared: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "FAIL"}])
    assert "no finite logit" in str(caught.value)
    assert client.chat.completions.create(model="scripted", messages=SAY).choices[0].message.content == "user:x"


def test_a_failure_in_mid_stream_is_an_error_event(shared: Served, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "FAIL LATER"}], stream=True
    )
    pieces: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        pieces.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(pieces) == "user:F"
    assert "no finite logit" in str(caught.value)
    text = shared.post(
        CHAT, json={"messages": [{"role": "user", "content": "FAIL LATER"}], "stream": True, "n": 2}
    ).text
    assert text.count('"error"') == 1 and text.endswith("data: [DONE]\n\n")
    assert shared.engine.wait_idle()
