"""Clients that keep a server waiting are let go; slow ones that get on are not."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from trtserve.api.server import allow_many_connections

from .conftest import Serve, Served

STALL = 0.3
HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@contextlib.contextmanager
def connected(served: Served, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect((host, int(port)))
        yield connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    return received


def healthy(connection: socket.socket) -> bool:
    """Read one answer to the request above."""
    received = b""
    while not received.endswith(b"}") and (piece := connection.recv(4096)):
        received += piece
    return received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD])
def test_a_head_that_does_not_come_is_given_up(serve: Serve, sent: bytes) -> None:
    served = serve(stall_timeout=STALL)
    with connected(served) as connection:
        connection.sendall(sent)
        assert rest(connection) == b""
    assert served.get("/health").status_code == 200


def test_a_head_sent_byte_by_byte_gets_no_more_time(serve: Serve) -> None:
    served = serve(stall_timeout=STALL)
    with connected(served) as connection, pytest.raises(OSError):
        for byte in HEAD * 1000:
            connection.sendall(bytes([byte]))
            time.sleep(STALL / 20)


def test_a_half_sent_head_after_an_answer_is_given_up_too(serve: Serve) -> None:
    served = serve(stall_timeout=STALL)
    with connected(served) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert healthy(connection)
        connection.sendall(HEAD)
        assert rest(connection) == b""
    # Sent in one piece, the second counts as an idle time's end only once it is whole.
    served = serve(keep_alive=STALL)
    with connected(served) as connection:
        connection.sendall(HEAD + b"\r\n" + HEAD)
        assert rest(connection).startswith(b"HTTP/1.1 200")


def test_the_rest_of_a_refused_body_is_not_read_for_ever(serve: Serve) -> None:
    served = serve(stall_timeout=STALL)
    with connected(served) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 404")
        with pytest.raises(OSError):
            while True:
                connection.sendall(b"x")
                time.sleep(STALL / 20)


def test_an_idle_connection_is_kept_as_long_as_asked(serve: Serve) -> None:
    served = serve(stall_timeout=STALL, keep_alive=3 * STALL)
    with connected(served) as connection:
        for _ in range(2):
            connection.sendall(HEAD + b"\r\n")
            assert healthy(connection)
            time.sleep(2 * STALL)
        assert rest(connection) == b""


def test_a_request_under_way_is_not_timed(serve: Serve) -> None:
    served = serve(stall_timeout=STALL)
    body = json.dumps({"prompt": "SLOW and long"}).encode()
    with connected(served) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        time.sleep(3 * STALL)
        served.engine.release()
        assert rest(connection).startswith(b"HTTP/1.1 200")


def test_a_request_sent_ahead_is_not_an_idle_time(serve: Serve) -> None:
    served = serve(stall_timeout=STALL, keep_alive=STALL)
    body = json.dumps({"prompt": "SLOW and long"}).encode()
    with connected(served) as connection:
        connection.sendall(
            HEAD + b"\r\nPOST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body + HEAD + b"\r\n"
        )
        time.sleep(4 * STALL)
        served.engine.release()
        assert rest(connection).count(b"HTTP/1.1 200") == 3


SCHEMA = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"


def ask_much(connection: socket.socket) -> None:
    """For the schema again and again: some megabytes of answers."""
    connection.sendall(SCHEMA * 400)


def test_a_reader_that_stops_reading_is_given_up(serve: Serve) -> None:
    served = serve(stall_timeout=STALL)
    with connected(served, receive_buffer=4096) as connection:
        ask_much(connection)
        assert connection.recv(1)
        deadline = time.monotonic() + 20
        while served.server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("last", [b"", SCHEMA.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"GET\r\n\r\n"])
def test_the_last_of_an_answer_is_not_kept_for_ever(serve: Serve, last: bytes) -> None:
    """Also too little of it for uvicorn to stop writing, whatever the connection closes for."""
    served = serve(stall_timeout=STALL, keep_alive=STALL)
    with connected(served, receive_buffer=4096) as connection:
        connection.sendall(SCHEMA)
        assert connection.recv(1)
        (serving,) = served.server.server_state.connections
        while not serving.transport.get_write_buffer_size():
            connection.sendall(SCHEMA)
            time.sleep(0.002)
        connection.sendall(last)
        deadline = time.monotonic() + 20
        while served.server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_slow_reader_is_waited_for(serve: Serve) -> None:
    served = serve(stall_timeout=STALL)
    with connected(served, receive_buffer=4096) as connection:
        ask_much(connection)
        received = 0
        until = time.monotonic() + 6 * STALL
        while time.monotonic() < until:
            received += len(connection.recv(1 << 16))
            time.sleep(STALL / 10)
        assert received and served.server.server_state.connections


def test_a_head_that_grows_too_large_is_refused(serve: Serve) -> None:
    served = serve(max_head_bytes=1024)
    assert served.get("/health", headers={"x": "a" * 500}).status_code == 200
    with connected(served) as connection:
        connection.sendall(HEAD + b"x: " + b"a" * 2000)
        assert rest(connection).startswith(b"HTTP/1.1 400")


def test_a_web_socket_is_not_opened(shared: Served) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    assert shared.get("/health", headers=headers).status_code == 200


def test_all_files_that_are_allowed_can_be_opened() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        allow_many_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
