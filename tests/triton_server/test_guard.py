"""A model's process ends with its server's, whatever it is doing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from trtserve.triton import guard

#: Starts a guarded process, tells its id, and stays.
SERVER = """
import subprocess, sys
model = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(model.pid, model.stdout.readline().decode().strip(), flush=True)
model.wait()
print("gone", flush=True)
sys.stdin.read()
"""
MODEL = """
import ctypes, os
from trtserve.triton import guard
guard.end_with(os.getppid())
print("guarded", flush=True)
"""
#: A call that never gives the interpreter's lock back.
STUCK = MODEL + "ctypes.PyDLL(None).sleep(120)"


@contextmanager
def serving(model: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """(the server, its model's process id). The server is not reaped before the end."""
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, "-c", SERVER, model], stdin=pipe, stdout=pipe, text=True)
    try:
        assert server.stdout is not None
        pid, said = server.stdout.readline().split()
        assert said == "guarded"
        yield server, int(pid)
    finally:
        server.kill()
        server.wait()


def runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(") ")[2][0] != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not runs(pid)


def guards(pid: int) -> list[int]:
    """The guards of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"trtserve-guard" in words and str(pid).encode() in words:
                found.append(int(path.parent.name))
    return found


def test_a_process_that_is_stuck_is_killed_with_its_server() -> None:
    with serving(STUCK) as (server, model):
        assert not gone_within(model, 1.5)
        server.kill()
        assert gone_within(model, 60)


def test_a_guard_goes_with_what_it_guards() -> None:
    with serving(MODEL) as (server, model):
        assert server.stdout is not None and server.stdout.readline() == "gone\n"
        deadline = time.monotonic() + 60
        while guards(model) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not guards(model) and server.poll() is None


def test_without_a_shell_the_model_is_served_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/bin/sh")

    monkeypatch.setattr(guard.subprocess, "Popen", missing)
    guard.end_with(1)
    assert "no guard: this process stays" in caplog.text
