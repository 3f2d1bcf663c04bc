"""A server over the scripted engine, on a free loopback port, and the real openai client."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from trtserve.api.auth import Authenticator, OpenAccess
from trtserve.api.context import ApiConfig, ServerContext
from trtserve.api.server import ApiServer, listen

from .scripted import ByteCodec, ScriptedEngine


@dataclass
class Served:
    """A running server."""

    url: str
    engine: Any
    context: ServerContext
    server: ApiServer
    http: httpx.Client

    @property
    def codec(self) -> Any:
        return self.context.codec

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30, **options)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.http.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)


@contextlib.contextmanager
def serving(context: ServerContext) -> Iterator[Served]:
    sock = listen("127.0.0.1", 0)
    server = ApiServer(context, drain_timeout=10)
    thread = threading.Thread(target=server.run_on, args=(sock,), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30) as http:
            yield Served(url, context.engine, context, server, http)
    finally:
        context.engine.close()
        server.should_exit = True
        thread.join(15)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(max_queue=..., auth=..., **ApiConfig's fields)``: a server of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(*, max_queue: int = 8, auth: Authenticator | None = None, **config: Any) -> Served:
            context = ServerContext(ScriptedEngine(max_queue), ByteCodec(), ApiConfig(**config), auth or OpenAccess())
            return stack.enter_context(serving(context))

        yield start


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One server for tests that leave nothing behind."""
    with serving(ServerContext(ScriptedEngine(32), ByteCodec(), ApiConfig(served_names=("scripted", "alias")))) as s:
        yield s


@pytest.fixture
def client(shared: Served) -> Iterator[openai.OpenAI]:
    with shared.client() as made:
        yield made
