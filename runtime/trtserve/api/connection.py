"""A client's connection, and how long it may keep the server waiting.

uvicorn closes a connection that is idle between two requests. It waits without end for one that never sends a whole
request head, and for one that does not read its answer. Here both have ``stall_timeout`` seconds, as the rest of a body
has in ``body.py``. Closing waits for the reader too: the last of an answer is still to be sent.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class ConnectionConfig(uvicorn.Config):
    """uvicorn's settings, for connections as below."""

    def __init__(self, app: Any, *, stall_timeout: float, **settings: Any) -> None:
        # The parser is named, so that a limit holds whatever else is installed. There are no web sockets here.
        super().__init__(app, http=Connection, ws="none", **settings)
        self.stall_timeout = stall_timeout


class Connection(H11Protocol):
    """One connection to an application served with ``ConnectionConfig``."""

    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None

    # ---- the head of the next request -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()
        self._expect_last_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()
        self._expect_last_reader()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_last_reader()

    def _expect_head(self) -> None:
        """Time the client while no request of its is under way. More bytes do not give it more time: they may be the
        rest of a body that was refused, or a head sent byte by byte."""
        under_way = self.cycle is not None and not self.cycle.response_complete
        if under_way:
            # Some uvicorns leave it set for a request that was sent before the answer to the one before.
            self._unset_keepalive_if_required()
        if under_way or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._drop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._stall_timeout, self._give_up_head)

    def _give_up_head(self) -> None:
        self.transport.close()
        self._expect_last_reader()

    def _drop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # ---- the reader of an answer ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._drop_reader_timer()

    def _expect_last_reader(self) -> None:
        """Time the reader of what is left to send on a connection that then closes, little as it may be."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size() and self._reader_timer is None:
            self._expect_reader()

    def _expect_reader(self) -> None:
        self._reader_timer = self.loop.call_later(self._stall_timeout, self._give_up_reader, self._unread())

    def _give_up_reader(self, before: int) -> None:
        if self._unread() < before:
            self._expect_reader()  # slow, but it reads
        else:
            self.transport.abort()

    def _unread(self) -> int:
        """Bytes of answers that the client's machine has not taken: ours, and those that the system holds, which are
        megabytes."""
        held = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(held, sys.byteorder)

    def _drop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    # ---- both -------------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_head_timer()
        self._drop_reader_timer()
        super().connection_lost(exc)

    @property
    def _stall_timeout(self) -> float:
        assert isinstance(self.config, ConnectionConfig)
        return self.config.stall_timeout
