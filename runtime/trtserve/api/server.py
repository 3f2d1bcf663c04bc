"""Listening, and leaving in good order: a signal drains, a second one quits."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from trtserve.api.app import create_app
from trtserve.api.connection import ConnectionConfig
from trtserve.api.context import ServerContext

#: Seconds, after the last generation ended, for the last bytes to leave.
FLUSH_TIMEOUT = 5


class ListenError(Exception):
    """The address cannot be listened on. The message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Port 0 takes a free one. Raises ListenError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as e:
        raise ListenError(f"cannot listen on {host}: {e.strerror or e}") from e
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Listen now: a second server must fail here, before it loads a model.
        sock.listen(2048)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise ListenError(f"port {port} on {host} is in use; choose another with --port") from e
        raise ListenError(f"cannot listen on {host}, port {port}: {e.strerror}") from e
    return sock


def allow_many_connections() -> None:
    """Let the process open as many files as it may at most. Every connection is one, and many shells allow 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system can refuse its own maximum.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class ApiServer(uvicorn.Server):
    """Serves a context's engine until a signal.

    The first SIGTERM or SIGINT drains: new requests get a 503 while those in flight finish, for at most
    ``drain_timeout`` seconds; then the server stops. A second signal ends the process at once. SIGHUP reads the
    tokens file again.
    """

    def __init__(
        self, context: ServerContext, *, drain_timeout: float = 30.0, on_ready: Callable[[], None] | None = None
    ) -> None:
        """``on_ready`` is called once, when connections are answered and signals handled."""
        config = ConnectionConfig(
            create_app(context),
            stall_timeout=context.config.stall_timeout,
            timeout_keep_alive=context.config.keep_alive,
            h11_max_incomplete_event_size=context.config.max_head_bytes,
            # Its own start and stop messages add nothing, and its access log would show queries.
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=FLUSH_TIMEOUT,
            log_config=None,
        )
        super().__init__(config)
        self._context = context
        self._drain_timeout = drain_timeout
        self._on_ready = on_ready
        self._leaving = False

    def run_on(self, sock: socket.socket) -> None:
        """Serve on a listening socket until the server has stopped. In the main thread, handles signals."""
        self.run(sockets=[sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces the base's handling, which would raise the signal again after a clean stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {
            signal.SIGINT: self._on_signal,
            signal.SIGTERM: self._on_signal,
            signal.SIGHUP: self._on_reload,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_reload(self, number: int, frame: FrameType | None) -> None:
        # Not in the handler itself: it may have interrupted a reload, whose lock it would wait for.
        threading.Thread(target=self._context.auth.reload, daemon=True).start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._leaving:
            sys.stderr.write("trtserve: quitting at once\n")
            sys.stderr.flush()
            os._exit(128 + number)
        self._leaving = True
        sys.stderr.write(
            f"trtserve: finishing running requests, for up to {self._drain_timeout:g} s; again to quit at once\n"
        )
        self.begin_drain()

    def begin_drain(self) -> None:
        """Refuse new requests, let running ones finish, then stop. Returns at once; from any thread."""
        self._context.draining = True
        threading.Thread(target=self._drain, name="trtserve-drain", daemon=True).start()

    def _drain(self) -> None:
        try:
            self._context.engine.drain(self._drain_timeout)
        finally:
            self.should_exit = True
