"""Load on one engine through its three front ends: the Python API, ``trtserve`` and Triton, side by side.

Each level of concurrency sends the same requests through each of them, in turn and several times, and all run the same
engine directory with the same settings; a level's figure is its median run. Clients are in one process and streams are
read to their end: the time to the first token is that of the first text, a request's latency that of its last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

# Before anything that computes is imported: spinning threads would take the cores of whoever is measured.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import click

FRONTS = ("python", "trtserve", "triton")
TRITON_PYTHON = "TRTLOOKUP_TRITON_PYTHON"


class Front(Protocol):
    """One way to the engine."""

    def text(self, prompt: str, max_tokens: int, salt: str) -> AsyncIterator[str]:
        """A greedy generation's pieces of text; end tokens do not end it. Nothing of another ``salt`` is reused."""
        ...


@dataclass(frozen=True)
class Request:
    """One request's times, in seconds from its start."""

    first: float
    last: float
    text: str


@dataclass(frozen=True)
class Level:
    """One front end under one load. Times in seconds."""

    front: str
    concurrency: int
    requests: int
    tokens_per_second: float
    requests_per_second: float
    first_p50: float
    first_p95: float
    latency_p50: float
    latency_p95: float
    latency_p99: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


async def _timed(front: Front, prompt: str, max_tokens: int, salt: str) -> Request:
    start, first, pieces = time.perf_counter(), 0.0, []
    async for piece in front.text(prompt, max_tokens, salt):
        first = first or time.perf_counter() - start
        pieces.append(piece)
    return Request(first, time.perf_counter() - start, "".join(pieces))


async def run_level(
    front: Front, prompts: Sequence[str], concurrency: int, max_tokens: int, salt: str
) -> tuple[float, list[Request]]:
    """Seconds for all prompts with ``concurrency`` at a time, and each request, in the order of the prompts."""
    done: list[Request | None] = [None] * len(prompts)
    left = iter(range(len(prompts)))

    async def client() -> None:
        for i in left:
            done[i] = await _timed(front, prompts[i], max_tokens, salt)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return time.perf_counter() - start, [r for r in done if r is not None]


def summed_up(name: str, concurrency: int, seconds: float, requests: Sequence[Request], max_tokens: int) -> Level:
    first, last = [r.first for r in requests], [r.last for r in requests]
    return Level(
        name,
        concurrency,
        len(requests),
        len(requests) * max_tokens / seconds,
        len(requests) / seconds,
        percentile(first, 0.5),
        percentile(first, 0.95),
        percentile(last, 0.5),
        percentile(last, 0.95),
        percentile(last, 0.99),
    )


# ---- the three front ends -------------------------------------------------------------------------------------------


class PythonFront:
    """``trtserve.Engine`` in this process."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def text(self, prompt: str, max_tokens: int, salt: str) -> AsyncIterator[str]:
        from trtserve import Delta, Scope

        options = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "scope": Scope(salt=salt)}
        async for event in self._engine.astream(prompt, **options):
            if isinstance(event, Delta) and event.text:
                yield event.text


class TrtserveFront:
    """``trtserve``'s completions, streamed."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = f"{url}/v1/completions"

    async def text(self, prompt: str, max_tokens: int, salt: str) -> AsyncIterator[str]:
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": salt,
        }
        async for event in _events(self._client, self._url, body):
            if text := event["choices"][0]["text"]:
                yield text


class TritonFront:
    """Triton's generate_stream."""

    def __init__(self, client: Any, url: str, model: str) -> None:
        self._client = client
        self._url = f"{url}/v2/models/{model}/generate_stream"

    async def text(self, prompt: str, max_tokens: int, salt: str) -> AsyncIterator[str]:
        body = {
            "text_input": prompt,
            "streaming": True,
            "sampling_param_max_tokens": max_tokens,
            "sampling_param_temperature": 0.0,
            "sampling_param_ignore_eos": True,
            "cache_salt": salt,
        }
        async for event in _events(self._client, self._url, body):
            if text := event.get("text_output"):
                yield text


async def _events(client: Any, url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events as JSON. Raises RuntimeError for an answer that is an error."""
    async with client.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{url}: {response.status_code} {(await response.aread()).decode()[:300]}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data is line or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(f"{url}: {event['error']}")
            yield event


@contextlib.contextmanager
def trtserve_running(engine: Path, threads: int | None, log: Path) -> Iterator[str]:
    """A ``trtserve`` process on a free port."""
    from benchmarks.triton_server import free_ports

    port = free_ports(1)[0]
    command = [sys.executable, "-m", "trtserve", str(engine), "--port", str(port)]
    command += ["--threads", str(threads)] if threads else []
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _await(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def triton_running(engine: Path, threads: int | None, python: Path, directory: Path) -> Iterator[tuple[str, str]]:
    """(URL, model) of a Triton server with the engine's model."""
    from benchmarks.triton_server import Bundle, TritonServer

    command = [sys.executable, "-m", "trtbuild", "triton", str(engine), "-o", str(directory / "models")]
    command += ["--set", f"threads={threads}"] if threads else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with TritonServer(Bundle.of(python), directory / "models", directory) as server:
        yield server.url, "tensorrt_llm"


def _await(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 300) -> None:
    import httpx

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer within {seconds:.0f} s")


# ---- measuring ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    prompts: tuple[str, ...]
    levels: tuple[int, ...]
    max_tokens: int
    repeats: int
    threads: int | None = None


def prompts_of(kinds: Sequence[str], count: int) -> tuple[str, ...]:
    """``count`` prompts, kinds in turn, from the workloads that everything here is measured with."""
    from benchmarks.workloads import cases

    pools = [["\n".join(m["content"] for m in case.messages) + "\n" for case in cases(kind)] for kind in kinds]
    return tuple(pools[i % len(pools)][(i // len(pools)) % len(pools[i % len(pools)])] for i in range(count))


async def measure(fronts: dict[str, Front], plan: Plan, say: Any = print) -> list[Level]:
    """Every front end at every level: its median run by throughput. Raises RuntimeError where the texts differ."""
    found = []
    for concurrency in plan.levels:
        runs: dict[str, list[Level]] = {name: [] for name in fronts}
        expected: list[str] | None = None
        for repeat in range(plan.repeats):
            for name, front in fronts.items():
                # A salt of its own, so that no run finds the keys and values that an earlier one left.
                salt = f"{concurrency}-{repeat}"
                seconds, requests = await run_level(front, plan.prompts, concurrency, plan.max_tokens, salt)
                runs[name].append(summed_up(name, concurrency, seconds, requests, plan.max_tokens))
                texts = [r.text for r in requests]
                if expected is not None and texts != expected:
                    raise RuntimeError(f"{name} gives other texts than the other front ends at {concurrency} at a time")
                expected = texts
        for name, levels in runs.items():
            middle = statistics.median_low([level.tokens_per_second for level in levels])
            found.append(next(level for level in levels if level.tokens_per_second == middle))
            say(f"{name:<9} {concurrency:>3} at a time  {found[-1].tokens_per_second:8.1f} tokens/s")
    return found


def table(levels: Sequence[Level]) -> str:
    """Markdown: a row per level and front end. Overhead is throughput lost against the Python API."""
    base = {level.concurrency: level for level in levels if level.front == "python"}
    lines = [
        "| at a time | front end | tokens/s | against Python | first text p50, p95 (ms) | latency p50, p95, p99 (ms) |",
        "|---|---|---|---|---|---|",
    ]
    for level in levels:
        against = base.get(level.concurrency)
        share = f"{100 * (level.tokens_per_second / against.tokens_per_second - 1):+.1f} %" if against else ""
        first = f"{1e3 * level.first_p50:.0f}, {1e3 * level.first_p95:.0f}"
        latency = ", ".join(f"{1e3 * x:.0f}" for x in (level.latency_p50, level.latency_p95, level.latency_p99))
        row = (str(level.concurrency), level.front, f"{level.tokens_per_second:.1f}", share, first, latency)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


async def run_all(engine: Path, plan: Plan, python: Path | None, names: Sequence[str], say: Any = print) -> list[Level]:
    """Start what is asked for, measure, and stop it all."""
    import httpx

    from trtserve import Engine

    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))
        fronts: dict[str, Front] = {}
        if "python" in names:
            overrides = {} if plan.threads is None else {"threads": plan.threads}
            fronts["python"] = PythonFront(stack.enter_context(Engine.load(engine, **overrides)))
        if "trtserve" in names:
            url = stack.enter_context(trtserve_running(engine, plan.threads, directory / "trtserve.log"))
            fronts["trtserve"] = TrtserveFront(client, url)
        if "triton" in names:
            assert python is not None
            (directory / "triton").mkdir()
            url, model = stack.enter_context(triton_running(engine, plan.threads, python, directory / "triton"))
            fronts["triton"] = TritonFront(client, url, model)
        # Last in, first out: a server whose clients have left stops at once.
        await stack.enter_async_context(client)
        for front in fronts.values():
            await _timed(front, plan.prompts[0], 4, "first")
        return await measure(fronts, plan, say)


@click.command(help=__doc__)
@click.argument("engine", type=click.Path(path_type=Path, exists=True))
@click.option("--levels", default="1,4,8", show_default=True, help="requests at a time, one level after the other")
@click.option("--requests", default=24, show_default=True, type=click.IntRange(1), help="per level and front end")
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(1), help="output tokens of each")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="runs of each level")
@click.option("--threads", type=click.IntRange(1), help="CPU threads of the engine; default: one per core")
@click.option("--kinds", default="code_edit,chat", show_default=True, help="workloads the prompts are taken from")
@click.option("--front", "names", multiple=True, type=click.Choice(FRONTS), help="only these; default: all there are")
@click.option(
    "--triton-python", envvar=TRITON_PYTHON, type=click.Path(path_type=Path), help="an environment with nvidia-pytriton"
)
@click.option("--json", "as_json", is_flag=True, help="print JSON and nothing else")
@click.option("--write", "into_docs", is_flag=True, help="put the table into docs/scale.md; needs all three front ends")
def main(
    engine: Path,
    levels: str,
    requests: int,
    tokens: int,
    repeats: int,
    threads: int | None,
    kinds: str,
    names: tuple[str, ...],
    triton_python: Path | None,
    as_json: bool,
    into_docs: bool,
) -> None:
    if "triton" in names and triton_python is None:
        raise click.UsageError(f"the front end triton needs --triton-python or {TRITON_PYTHON}")
    wanted = names or tuple(n for n in FRONTS if n != "triton" or triton_python is not None)
    if into_docs and set(wanted) != set(FRONTS):
        raise click.UsageError(f"--write needs all of {', '.join(FRONTS)}; there are {', '.join(wanted)}")
    plan = Plan(prompts_of(kinds.split(","), requests), tuple(map(int, levels.split(","))), tokens, repeats, threads)
    say = (lambda _: None) if as_json else click.echo
    found = asyncio.run(run_all(engine, plan, triton_python, wanted, say))
    settings = {"engine": engine.name, "requests": requests, "tokens": tokens, "repeats": repeats, "threads": threads,
                "kinds": kinds}  # fmt: skip
    result = {"settings": settings, "levels": [asdict(level) for level in found]}
    click.echo(json.dumps(result, indent=1) if as_json else "\n" + table(found))
    if into_docs:
        from benchmarks.run import write_down

        write_down("load", result)


if __name__ == "__main__":
    main()
