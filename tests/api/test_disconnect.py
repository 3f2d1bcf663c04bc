"""A client that hangs up frees its slots, streaming or not."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

import pytest

from .conftest import Serve, Served


def send(served: Served, path: str, body: dict[str, Any]) -> socket.socket:
    """A request on a bare socket, which the test can hang up whenever it likes."""
    host, port = served.url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "SLOW and long enough"}]}),
        ("/v1/completions", {"prompt": "SLOW and long enough"}),
    ],
)
def test_hanging_up_frees_the_slots(serve: Serve, path: str, prompt: dict[str, Any], stream: bool, n: int) -> None:
    served = serve()
    connection = send(served, path, {**prompt, "stream": stream, "n": n})
    for _ in range(n):
        assert served.engine.stuck.acquire(timeout=10)
    if stream:
        assert b"200 OK" in connection.recv(4096)
    assert served.engine.num_running == n
    connection.close()
    assert served.engine.wait_idle()
    assert served.engine.finished == {"stop": 0, "length": 0, "cancelled": n, "error": 0}
    assert served.post("/v1/completions", json={"prompt": "fine"}).json()["choices"][0]["text"] == "fine"


def test_hanging_up_before_the_body_is_complete_submits_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
    assert served.post("/v1/completions", json={"prompt": "fine"}).status_code == 200
    assert len(served.engine.requests) == 1
    # The client's doing, no failure of the server.
    while 'status="499"' not in (metrics := served.get("/metrics").text):
        assert 'status="500"' not in metrics
        time.sleep(0.01)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_a_body_that_stops_coming_is_given_up(serve: Serve) -> None:
    served = serve(stall_timeout=0.2)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        answer = b""
        while received := connection.recv(4096):
            answer += received
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408") and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "request_timeout"
    assert served.engine.requests == []


def test_a_body_that_trickles_in_is_given_up(serve: Serve) -> None:
    served = serve(stall_timeout=0.3)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"
        )
        connection.settimeout(0.02)
        answer, sent = b"", 0
        while not answer:
            connection.sendall(b"x")
            sent += 1
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408") and sent < 500


def test_one_clients_leaving_leaves_the_others_alone(serve: Serve) -> None:
    served = serve()
    body = {"prompt": "SLOW and long enough", "stream": True, "max_tokens": 100}
    leaving, staying = (send(served, "/v1/completions", body) for _ in range(2))
    for _ in range(2):
        assert served.engine.stuck.acquire(timeout=10)
    leaving.close()
    with served.engine._lock:
        assert served.engine._lock.wait_for(lambda: served.engine.finished["cancelled"] == 1, 10)
    served.engine.release()
    received = b""
    while b"[DONE]" not in received:
        received += staying.recv(4096)
    staying.close()
    assert b'"finish_reason":"stop"' in received
