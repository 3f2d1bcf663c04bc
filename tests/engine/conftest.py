"""Engines over the toy executor, closed when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trtserve.engine.local import LocalEngine

from .toy import ToyDrafter, ToyExecutor, ToyTokenizer, toy_limits, toy_manifest, toy_speculative


@pytest.fixture
def make_engine() -> Iterator[Callable[..., LocalEngine]]:
    """``make_engine(drafter=..., limits={...}, lookup={...}, executor={...}, **LocalEngine's own)``."""
    engines: list[LocalEngine] = []

    def make(
        *,
        drafter: Any = ToyDrafter,
        limits: dict[str, int] | None = None,
        lookup: dict[str, int] | None = None,
        executor: dict[str, Any] | None = None,
        **options: Any,
    ) -> LocalEngine:
        speculative = toy_speculative(**(lookup or {}))
        bounds = toy_limits(**(limits or {}))
        engine = LocalEngine(
            ToyExecutor(bounds, speculative, **(executor or {})),
            drafter() if isinstance(drafter, type) else drafter,
            ToyTokenizer(),
            toy_manifest(bounds, speculative),
            **options,
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
        assert engine._executor.closed
