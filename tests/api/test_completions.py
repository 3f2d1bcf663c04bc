"""Plain completions through the real client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from .conftest import Served


def test_completes_with_the_endpoints_default_limit(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="0123456789abcdefghij")
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("0123456789abcdef", "length")


def test_the_default_limit_yields_to_the_context(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="x" * 505)
    assert len(answer.choices[0].text) == 7


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        (["solo"], ["solo"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
def test_every_form_of_prompt(client: openai.OpenAI, prompt: Any, texts: list[str]) -> None:
    answer = client.completions.create(model="scripted", prompt=prompt)
    assert [c.text for c in answer.choices] == texts
    assert answer.usage is not None and answer.usage.prompt_tokens == sum(map(len, texts))


def test_several_prompts_times_several_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt=["ab", "cd"], n=2, seed=5, max_tokens=40)
    assert [(c.index, c.text) for c in answer.choices] == [
        (0, "[seed 5]ab"),
        (1, "[seed 6]ab"),
        (2, "[seed 5]cd"),
        (3, "[seed 6]cd"),
    ]
    assert answer.usage is not None and answer.usage.prompt_tokens == 4


def test_echo_puts_the_prompt_in_front(client: openai.OpenAI) -> None:
    assert client.completions.create(model="scripted", prompt="ab", echo=True).choices[0].text == "abab"
    assert client.completions.create(model="scripted", prompt=[97, 98], echo=True).choices[0].text == "abab"
    stream = client.completions.create(model="scripted", prompt=["ab", "cd"], echo=True, stream=True)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["abab", "cdcd"]


def test_streams_text_and_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(model="scripted", prompt="hello", stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].text for c in chunks[:-1]) == "hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5


def test_every_chunk_has_its_prompts_usage_so_far(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="scripted",
            prompt=["hello", "ab"],
            echo=True,
            stream=True,
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
    )
    for index, prompt in enumerate(("hello", "ab")):
        own = [c.usage for c in chunks[:-1] if c.choices[0].index == index]
        # The echo, rounds of three tokens, and the end.
        counts = [*range(0, len(prompt), 3), len(prompt), len(prompt)]
        assert [(u.prompt_tokens, u.completion_tokens) for u in own if u] == [(len(prompt), c) for c in counts]
    last = chunks[-1].usage
    assert last is not None and (last.prompt_tokens, last.completion_tokens, last.total_tokens) == (7, 7, 14)


def test_logprobs_in_the_older_format(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="abc", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None and set(logprobs.top_logprobs[0]) == {"a"}
    none = client.completions.create(model="scripted", prompt="abc", logprobs=0).choices[0].logprobs
    assert none is not None and none.top_logprobs is not None and none.top_logprobs[1] == {"b": -0.5}


def test_streamed_offsets_count_on(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="scripted", prompt="abcdefgh", logprobs=0, stream=True)
    offsets: list[int] = []
    for chunk in stream:
        logprobs = chunk.choices[0].logprobs
        offsets += (logprobs.text_offset if logprobs else None) or []
    assert offsets == list(range(8))


def test_tokenize_and_detokenize_are_inverse(shared: Served) -> None:
    said = shared.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert said["tokens"] == list("hé".encode()) and said["count"] == 3 and said["max_model_len"] == 512
    assert said["token_strs"][0] == "h"
    assert shared.post("/detokenize", json={"tokens": said["tokens"]}).json() == {"prompt": "hé"}
    chat = shared.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    assert chat["tokens"] == list(b"user:x")
    assert shared.post("/tokenize", json={}).status_code == 400
    assert shared.post("/detokenize", json={"tokens": [256]}).json()["error"]["param"] == "tokens"


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["scripted", "alias"]
    assert client.models.retrieve("alias").model_extra == {"root": "scripted", "parent": None, "max_model_len": 512}
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")
