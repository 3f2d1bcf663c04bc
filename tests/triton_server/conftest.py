"""One real Triton server for all tests of this folder, where an environment for it is at hand."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.triton_server import Bundle, TritonServer
from trtbuild.cli import run
from trtserve.api.context import ServerContext
from trtserve.api.server import ApiServer, listen
from trtserve.loading import load_engine
from trtserve.overrides import Overrides

from .tiny import write_tiny_engine

ENVIRONMENT = "TRTLOOKUP_TRITON_PYTHON"
#: Streams; its tenant is the request parameter ``tenant``.
STREAMING = "tensorrt_llm"
#: Answers plain requests; its tenant is what a gateway puts into a header that Triton forwards.
UNARY = "unary"
TENANT_HEADER = "x-tenant"
QUEUE = 6
LIBPYTHON = """
import ctypes, os, sysconfig
name = f"libpython{sysconfig.get_config_var('VERSION')}.so.1.0"
path = os.path.join(sysconfig.get_config_var("LIBDIR"), name)
ctypes.CDLL(path if os.path.exists(path) else name)
"""
SETTINGS = ("--set", "threads=1", "--set", f"max_queue={QUEUE}", "--set", "prompt_lookup_shared_cache_mb=1")


@pytest.fixture(scope="session")
def triton_python() -> Path:
    """The interpreter of an environment that has nvidia-pytriton and this project. Without it the tests are skipped."""
    given = os.environ.get(ENVIRONMENT)
    if not given:
        pytest.skip(f"{ENVIRONMENT} is not set; make test creates an environment with nvidia-pytriton and sets it")
    found = subprocess.run([given, "-c", LIBPYTHON], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"Triton's Python backend needs a shared libpython: {found.stderr.strip().splitlines()[-1]}")
    return Path(given)


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")


def write_model(engine: Path, repository: Path, name: str, *options: str) -> None:
    assert run(["triton", str(engine), "-o", str(repository), "--model-name", name, *options]) == 0


@pytest.fixture(scope="session")
def triton(triton_python: Path, tiny_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with two models over the tiny engine: one that streams, and one that answers plain requests."""
    root = tmp_path_factory.mktemp("triton")
    repository = root / "models"
    write_model(tiny_engine, repository, STREAMING, *SETTINGS)
    write_model(
        tiny_engine, repository, UNARY, *SETTINGS, "--no-decoupled", "--copy", "--tenant-parameter", TENANT_HEADER
    )
    options = (
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--http-header-forward-pattern={TENANT_HEADER}",
        f"--grpc-header-forward-pattern={TENANT_HEADER}",
    )
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    with TritonServer(Bundle.of(triton_python), repository, root, options, environment) as server:
        yield server


@dataclass
class Trtserve:
    """``trtserve``'s HTTP API over an engine directory."""

    url: str

    def complete(self, prompt: str, **options: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/v1/completions", json={"prompt": prompt, **options}, timeout=120, verify=False)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture(scope="session")
def start_trtserve() -> Iterator[Callable[[Path], Trtserve]]:
    stops: list[Callable[[], None]] = []

    def start(directory: Path) -> Trtserve:
        engine, tokenizer = load_engine(directory, Overrides(threads=1))
        sock = listen("127.0.0.1", 0)
        server = ApiServer(ServerContext(engine, tokenizer), drain_timeout=10)
        thread = threading.Thread(target=server.run_on, args=(sock,), daemon=True)
        thread.start()

        def stop() -> None:
            engine.close()
            server.should_exit = True
            thread.join(15)

        stops.append(stop)
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        return Trtserve(f"http://127.0.0.1:{sock.getsockname()[1]}")

    yield start
    for stop in stops:
        stop()


@pytest.fixture(scope="session")
def trtserve(tiny_engine: Path, start_trtserve: Callable[[Path], Trtserve]) -> Trtserve:
    return start_trtserve(tiny_engine)
