"""The drafter's side channel: from the process that drafts to the process that serves.

TensorRT-LLM runs its executor in worker processes and sends tokens back; of our drafter it knows nothing. So rank 0's
drafter announces each round over a Unix socket, *before* the round's forward. The round's tokens come back later, by
TensorRT-LLM's own way, so whoever reads the announcements first, when tokens arrive, has the announcement of the round
that made them: which drafts were verified and where they came from. How many were accepted follows from the tokens.

One message a round, as JSON. Nothing waits for the reader: where the socket is full a message is dropped, the next one
says how many were lost, and the rounds it told of count as rounds without drafts. Text never depends on the channel.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MAX_MESSAGE = 1 << 20
_BUFFER = 4 << 20


class Announced(NamedTuple):
    """One sequence's part in a round."""

    client: int  # TensorRT-LLM's client id: the request's id on the serving side
    output: int  # output tokens before the round
    source: str | None  # where the drafts came from; None without drafts
    drafts: tuple[int, ...]
    window: int
    backing_off: bool
    rounds_skipped: int


class Shared(NamedTuple):
    """The shared cache, as its metrics show it."""

    bytes: int = 0
    budget: int = 0
    scopes: int = 0
    evictions: int = 0


class FeedWriter:
    """The drafter's end. Pickled, it is its address; it connects when it first has something to say."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._broken = False
        self._lost = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["address"])  # type: ignore[misc]

    def announce(self, rounds: Sequence[Announced], shared: Shared) -> None:
        """Tell of one round's sequences. Never waits and never raises."""
        if self._broken:
            return
        message = json.dumps([self._lost, shared, rounds], separators=(",", ":")).encode()
        try:
            self._connected().send(message)
            self._lost = 0
        except (BlockingIOError, InterruptedError):
            self._lost += 1
        except OSError:
            # The reader is gone, or never was. Drafting goes on; nobody is left to tell.
            self._broken = True
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            connection.connect(self.address)
            connection.setblocking(False)
            self._socket = connection
        return self._socket


@dataclass
class FeedReader:
    """The serving end: a socket in a directory of its own that no other user can enter.

    ``drain`` and ``take`` are called by one thread. Announcements of unknown requests are kept until ``forget``.
    """

    rounds_total: int = 0
    lost_total: int = 0
    shared: Shared = field(default_factory=Shared)
    _rounds: dict[int, dict[int, Announced]] = field(default_factory=dict)
    _latest: dict[int, Announced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="trtserve-"))
        self.address = str(self._directory / "drafts")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(self.address)
            os.chmod(self.address, 0o600)  # noqa: PTH101
            self._listener.listen(4)
            self._listener.setblocking(False)
        except OSError:
            self.close()
            raise
        self._connections: list[socket.socket] = []

    def drain(self) -> None:
        """Read everything that was announced so far."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, OSError):
                break
            connection.setblocking(False)
            self._connections.append(connection)
        for connection in tuple(self._connections):
            while True:
                try:
                    message = connection.recv(MAX_MESSAGE)
                except (BlockingIOError, InterruptedError):
                    break
                except OSError:
                    message = b""
                if not message:
                    self._connections.remove(connection)
                    connection.close()
                    break
                self._read(message)

    def take(self, client: int, output: int) -> Announced | None:
        """The round of request ``client`` that began after ``output`` tokens, once."""
        rounds = self._rounds.get(client)
        return rounds.pop(output, None) if rounds else None

    def next_start(self, client: int, after: int) -> int | None:
        """Where the next known round of a request begins, beyond ``after`` output tokens."""
        return min((start for start in self._rounds.get(client, ()) if start > after), default=None)

    def latest(self, client: int) -> Announced | None:
        return self._latest.get(client)

    def forget(self, client: int) -> None:
        """The request is over."""
        self._rounds.pop(client, None)
        self._latest.pop(client, None)

    def close(self) -> None:
        for connection in getattr(self, "_connections", ()):
            connection.close()
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read(self, message: bytes) -> None:
        try:
            lost, shared, rounds = json.loads(message)
            announced = [Announced(c, o, s, tuple(d), w, bool(b), k) for c, o, s, d, w, b, k in rounds]
            snapshot = Shared(*shared)
        except (ValueError, TypeError):
            self.lost_total += 1
            return
        self.rounds_total += 1
        self.lost_total += lost
        self.shared = snapshot
        for entry in announced:
            self._rounds.setdefault(entry.client, {})[entry.output] = entry
            self._latest[entry.client] = entry
