"""The Python API, over a real executor and tokenizer with random weights."""

from __future__ import annotations

import asyncio
import doctest
import gc
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trtserve
from tests.tiny.engine import write_tiny_engine
from trtserve import Completion, Delta, Engine, EngineClosedError, Finish, RequestError, SamplingParams, Scope, facade
from trtserve.engine.local import LocalEngine
from trtserve.engine_dir import EngineDirError
from trtserve.executor.base import ExecutorError, StepInput, StepOutput
from trtserve.loading import load_engine
from trtserve.overrides import OverrideError, Overrides

from .toy import collect

ROOT = Path(__file__).parents[2]
TEXT = "x = foo(a); y = foo(a); z = foo("


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    with Engine.load(directory, threads=1) as engine:
        yield engine


def tokens(done: Completion) -> list[int]:
    return [t.token for t in done.tokens]


def test_docstring_examples(directory: Path) -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in finder.find(facade.Engine, "Engine", globs={**vars(facade), "directory": directory}):
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0 and runner.tries >= 8


def test_public_names_are_there_and_no_others() -> None:
    assert all(hasattr(trtserve, name) for name in trtserve.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = trtserve.nothing_like_it  # type: ignore[attr-defined]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}])
def test_every_way_to_generate_gives_the_same(engine: Engine, sampling: dict[str, float]) -> None:
    want = engine.generate(TEXT, max_tokens=30, lookup=False, **sampling)
    assert len(want.tokens) == want.finish.stats.completion_tokens
    events = list(engine.stream(TEXT, max_tokens=30, **sampling))
    assert isinstance(events[-1], Finish)
    assert "".join(e.text for e in events if isinstance(e, Delta)) == want.text
    assert tokens(asyncio.run(engine.agenerate(TEXT, max_tokens=30, **sampling))) == tokens(want)
    assert tokens(engine.generate(engine.tokens(TEXT), max_tokens=30, **sampling)) == tokens(want)
    assert tokens(engine.generate(TEXT, params=SamplingParams(max_tokens=30, **sampling))) == tokens(want)
    assert tokens(collect(engine.submit(TEXT, max_tokens=30, **sampling))) == tokens(want)
    assert tokens(engine.generate(TEXT, max_tokens=30, prediction="foo(a)", **sampling)) == tokens(want)


def test_chat_uses_the_template(engine: Engine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    rendered = "<s>user\nhi</s><s>assistant\n"
    assert list(engine.tokens(messages)) == engine.tokenizer.encode(rendered).tolist()
    assert tokens(engine.chat(messages, max_tokens=8, temperature=0)) == tokens(
        engine.generate(rendered, max_tokens=8, temperature=0)
    )


def test_a_numpy_prompt(engine: Engine) -> None:
    prompt = np.array(engine.tokens(TEXT))
    assert tokens(engine.generate(prompt, max_tokens=8, temperature=0)) == tokens(  # type: ignore[arg-type]
        engine.generate(TEXT, max_tokens=8, temperature=0)
    )


@pytest.mark.parametrize(
    ("prompt", "arguments", "param", "message"),
    [
        ("", {}, "prompt", "empty"),
        ([], {}, "prompt", "empty"),
        ("x" * 300, {}, "prompt", "300 tokens"),
        ("x\ud800", {}, "prompt", "surrogate"),
        (None, {}, "prompt", "type NoneType"),
        (5, {}, "prompt", "type int"),
        (b"x", {}, "prompt", "type bytes"),
        ("x", {"prediction": "x\ud800"}, "prediction", "surrogate"),
        ("x", {"scope": "alice"}, "scope", "must be a Scope, not str"),
        ("x", {"scope": Scope(tenant=5)}, "scope", "scope.tenant must be text"),  # type: ignore[arg-type]
        ("x", {"scope": Scope(salt="\ud800")}, "scope", "surrogate"),
        ([{"content": 1}], {"max_tokens": 300}, "max_tokens", "max_tokens is 300"),
        ("x", {"temprature": 1}, "temprature", "not a sampling parameter; allowed: max_tokens"),
        ("x", {"top_p": 2}, "top_p", "less than or equal to 1, not 2"),
        ("x", {"repetition_penalty": 1e-320}, "repetition_penalty", "greater than or equal to 0.01"),
        ("x", {"params": SamplingParams(), "seed": 1}, "params", "give params or seed"),
    ],
)
def test_refusals(engine: Engine, prompt: object, arguments: dict[str, object], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as e:
        engine.generate(prompt, **arguments)  # type: ignore[arg-type]
    assert e.value.param == param


def test_a_text_far_too_long_is_refused_and_a_prediction_cut(engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"the prompt has at least \d+ tokens; this engine's context holds"):
        engine.generate("many words " * 100_000)
    assert len(engine.prediction_tokens("many words " * 100_000)) == engine.manifest.limits.max_seq_len
    # A prediction is what the model may say, and no control token's written form is.
    text = "a</s>"
    assert engine.prediction_tokens(text) == engine.tokenizer.encode(text, allow_special=False).tolist()


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-320},
        {"temperature": 100.0, "top_k": 1 << 80},
        {"top_p": 1e-320, "seed": (1 << 64) - 1},
        {"min_p": 1.0, "seed": -(1 << 63)},
        {"repetition_penalty": 0.01, "temperature": 1e-6},
        {"repetition_penalty": 100.0, "presence_penalty": 2.0, "frequency_penalty": -2.0},
        {"logit_bias": {5: 100.0, 6: -100.0}, "min_tokens": 20},
    ],
)
def test_parameters_at_their_ends_are_served(engine: Engine, sampling: dict[str, Any]) -> None:
    sampling = {"seed": 1, "max_tokens": 20, "ignore_eos": True, **sampling}
    want = engine.generate(TEXT, lookup=False, **sampling)
    assert len(want.tokens) == 20
    assert tokens(engine.generate(TEXT, prediction=TEXT, **sampling)) == tokens(want)


def test_after_a_fork_the_child_is_told(engine: Engine) -> None:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child = os.fork()
    if child == 0:
        try:
            engine.submit("x")
            said = "taken"
        except EngineClosedError as e:
            said = str(e)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        assert "not in this process" in f.read()
    os.waitpid(child, 0)


def test_leaving_a_stream_cancels(engine: Engine) -> None:
    class Endless:
        """A generation without an end, that counts its cancels."""

        cancels = 0

        def __iter__(self) -> Iterator[Delta]:
            while True:
                yield Delta("x", ())

        async def __aiter__(self) -> AsyncIterator[Delta]:
            while True:
                yield Delta("x", ())

        def cancel(self) -> None:
            self.cancels += 1

    generation = Endless()
    for _ in facade._followed(generation):  # type: ignore[arg-type]
        break
    assert generation.cancels == 1

    async def first() -> None:
        stream = facade._afollowed(generation)  # type: ignore[arg-type]
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(first())
    assert generation.cancels == 2


def test_a_stream_that_is_never_read_is_cancelled(engine: Engine) -> None:
    def cancelled() -> int:
        return engine.metrics()["finished_total"]["cancelled"]

    before = cancelled()
    stream = engine.stream(TEXT, ignore_eos=True, lookup=False)
    astream = engine.astream(TEXT, ignore_eos=True, lookup=False)
    del stream, astream
    gc.collect()
    deadline = time.monotonic() + 20
    while cancelled() < before + 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert cancelled() == before + 2


def test_two_readers_of_one_generation_both_come_to_an_end(engine: Engine) -> None:
    generation = engine.submit(TEXT, max_tokens=30, ignore_eos=True)
    ends: list[Finish] = []
    readers = [
        threading.Thread(target=lambda: ends.extend(e for e in generation if isinstance(e, Finish)), daemon=True)
        for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
        assert not reader.is_alive()
    assert ends and all(e is ends[0] for e in ends)


SNIPPETS = [
    code
    for page in ("README.md", "docs/serving.md")
    for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_snippets_of_the_pages_run(directory: Path, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(code.replace("engines/smollm2-135m", str(directory)), {})
    assert capsys.readouterr().out


def test_scopes_and_reuse(engine: Engine) -> None:
    def cached(scope: Scope | None) -> int:
        finish = engine.generate("a prompt of its own " * 3, max_tokens=4, temperature=0, scope=scope).finish
        assert finish is not None
        return finish.stats.cached_tokens

    assert cached(Scope("alice")) == 0
    assert cached(Scope("alice")) == 59
    assert cached(Scope("bob")) == 0 and cached(None) == 0


def test_many_at_once(engine: Engine) -> None:
    prompts = [TEXT[: 8 + n] for n in range(20)]
    want = [tokens(engine.generate(p, max_tokens=12, temperature=0.8, seed=5, lookup=False)) for p in prompts]

    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*(engine.agenerate(p, max_tokens=12, temperature=0.8, seed=5) for p in prompts))

    assert [tokens(d) for d in asyncio.run(all_of_them())] == want


def test_a_closed_engine(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.load(directory, threads=1)
    assert isinstance(engine.engine, LocalEngine)
    executor, started = engine.engine._executor, threading.Event()
    step, closing = executor.step, threading.Event()

    def held(batch: StepInput) -> StepOutput:
        started.set()
        assert closing.wait(10)
        return step(batch)

    monkeypatch.setattr(executor, "step", held)
    running = engine.stream(TEXT, temperature=0, ignore_eos=True)
    assert started.wait(10)
    closer = threading.Thread(target=engine.close)
    closer.start()
    while not engine.engine._door.closed:
        time.sleep(0.001)
    closing.set()
    closer.join(10)
    engine.close()
    with pytest.raises(EngineClosedError):
        list(running)
    with pytest.raises(EngineClosedError):
        engine.generate("x")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"prompt_lookup_max_drafts": 9}, "max_drafts is 9, .* 8 drafts"),
        ({"prompt_lookup_decoding": False, "prompt_lookup_shared_cache_mb": 1}, "lookup is off"),
        ({"prompt_lookup_shared_cache_mb": 1, "prompt_lookup_shared_cache_scopes": 256}, "shared cache|1024|1,024"),
        ({"max_drafts": 4}, "not an override"),
    ],
)
def test_load_refuses_what_the_engine_was_not_built_for(
    directory: Path, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(OverrideError, match=message):
        Engine.load(directory, **overrides)


def test_load_overrides_take_effect(directory: Path) -> None:
    with Engine.load(
        directory, threads=1, prompt_lookup_shared_cache_mb=1, prompt_lookup_max_drafts=3, max_queue=5
    ) as engine:
        done = engine.generate(TEXT, max_tokens=60, temperature=0)
        assert done.finish.stats.window <= 3
        assert engine.metrics()["shared_cache_scopes"] == 1
    with Engine.load(directory, threads=1, hermetic=True, prompt_lookup_decoding=False) as engine:
        for _ in range(2):
            finish = engine.generate(TEXT, max_tokens=20, temperature=0).finish
            assert finish is not None and finish.stats.cached_tokens == 0
            assert sum(s.proposed for s in finish.stats.sources.values()) == 0


def test_load_says_what_is_wrong_with_a_directory(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineDirError, match="no such directory"):
        Engine.load(tmp_path / "none")
    with pytest.raises(ExecutorError, match="cuda"):
        Engine.load(directory, device="cuda:7")


def test_exact_verify_is_promised_or_said_not_to_be(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = Overrides(exact_verify=True, threads=1)
    load_engine(directory, overrides).engine.close()
    assert "cannot promise" not in caplog.text
    from trtserve.executor import torch as torch_target

    original = torch_target.TorchExecutor.load

    def inexact(*args: object, **kwargs: object) -> object:
        executor = original(*args, **kwargs)  # type: ignore[arg-type]
        object.__setattr__(executor.info, "exact", False)
        return executor

    monkeypatch.setattr(torch_target.TorchExecutor, "load", inexact)
    with caplog.at_level(logging.WARNING):
        engine = load_engine(directory, overrides).engine
    assert isinstance(engine, LocalEngine) and "exact_verify: device cpu cannot promise" in caplog.text
    engine.close()
