"""Engines of one tiny checkpoint: ours over torch, and TensorRT-LLM's over the fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.checkpoint import write_checkpoint
from trtserve import Engine

from . import fake, recipes

Open = Callable[..., Engine]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def reference(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Our scheduler over the torch executor, without lookup: what every text must be."""
    out = recipes.build(tmp_path_factory.mktemp("torch"), recipes.recipe("torch", checkpoint))
    with Engine.load(out, prompt_lookup_decoding=False, threads=1) as engine:
        yield engine


@pytest.fixture
def open_engine(checkpoint: Path, tmp_path: Path) -> Iterator[Open]:
    """``open_engine(line, overrides={...}, version=..., **recipe sections)``: an engine over the fake of that line."""
    with ExitStack() as stack:

        def make(
            line: str, overrides: dict[str, Any] | None = None, version: str | None = None, **sections: Any
        ) -> Engine:
            stack.enter_context(fake.installed(line, version))
            own = {"version": "1.2" if line == "1.2" else "1.3", **sections.pop("tensorrt_llm", {})}
            described = recipes.recipe("tensorrt_llm", checkpoint, tensorrt_llm=own, **sections)
            engine = Engine.load(recipes.build(tmp_path, described), **(overrides or {}))
            stack.callback(engine.close)
            return engine

        yield make


def worker(engine: Engine) -> Any:
    """The fake executor's worker under an engine of 1.3 or 1.4."""
    return engine.engine._llm._fake.worker  # type: ignore[attr-defined]


def verify_executor(engine: Engine) -> Any:
    """The fake 1.2 executor under an engine."""
    return engine.engine._executor._executor._fake  # type: ignore[attr-defined]
