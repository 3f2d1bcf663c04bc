"""The load tool: its figures, and that it refuses to compare front ends whose texts differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from benchmarks.load import Level, Plan, PythonFront, TrtserveFront, measure, percentile, run_level, table
from benchmarks.triton_server import free_ports
from trtserve import Engine

from .conftest import Trtserve
from .tiny import write_tiny_engine


class Echo:
    """Two pieces; counts how many requests are under way."""

    def __init__(self, suffix: str = "") -> None:
        self.suffix, self.now, self.most = suffix, 0, 0

    async def text(self, prompt: str, max_tokens: int, salt: str) -> AsyncIterator[str]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        yield prompt
        yield self.suffix
        self.now -= 1


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(x) for x in range(1, 11)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [5.0, 10.0, 10.0, 10.0]
    assert percentile([7.0], 0.5) == 7.0


def test_a_level_keeps_so_many_requests_going_and_their_order() -> None:
    echo = Echo("!")
    prompts = [str(i) for i in range(20)]
    _, requests = asyncio.run(run_level(echo, prompts, 3, 8, ""))
    assert [r.text for r in requests] == [f"{p}!" for p in prompts]
    assert echo.most == 3
    assert all(0 < r.first <= r.last for r in requests)


def test_front_ends_that_disagree_are_no_comparison() -> None:
    plan = Plan(("a", "b"), (1,), 8, 1)
    assert len(asyncio.run(measure({"python": Echo(), "triton": Echo()}, plan, lambda _: None))) == 2
    with pytest.raises(RuntimeError, match="triton gives other texts"):
        asyncio.run(measure({"python": Echo(), "triton": Echo("x")}, plan, lambda _: None))


def test_the_table_has_the_overhead_against_the_python_api() -> None:
    fast = Level("python", 4, 8, 200.0, 2.0, 0.01, 0.02, 0.1, 0.2, 0.3)
    slow = Level("triton", 4, 8, 150.0, 1.5, 0.01, 0.02, 0.1, 0.2, 0.3)
    assert table([fast, slow]).splitlines()[3] == "| 4 | triton | 150.0 | -25.0 % | 10, 20 | 100, 200, 300 |"


def test_python_and_trtserve_side_by_side(tmp_path: Path, start_trtserve: Callable[[Path], Trtserve]) -> None:
    import httpx

    directory = write_tiny_engine(tmp_path / "tiny")
    served = start_trtserve(directory)

    async def run(engine: Engine) -> list[Level]:
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            fronts = {"python": PythonFront(engine), "trtserve": TrtserveFront(client, served.url)}
            return await measure(fronts, Plan(("abc", "def"), (1, 2), 12, 1), lambda _: None)

    with Engine.load(directory, threads=1) as engine:
        levels = asyncio.run(run(engine))
    assert [(level.front, level.concurrency) for level in levels] == [
        ("python", 1), ("trtserve", 1), ("python", 2), ("trtserve", 2),
    ]  # fmt: skip
    assert all(level.tokens_per_second > 0 for level in levels)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(8))) == 8
