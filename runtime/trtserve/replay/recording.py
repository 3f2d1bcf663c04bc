"""Recording traces from live traffic: token ids alone, of the tenants that were named, of finished requests."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Collection
from pathlib import Path

from trtserve.engine.protocol import Scope
from trtserve.lookup.tokens import Tokens
from trtserve.replay.traces import Trace

_log = logging.getLogger(__name__)


class TraceRecorder:
    """Appends a line of JSON per request to a file that only its owner can read.

    Nothing names the tenant or tells when the request came. The engine's thread calls it; a file that cannot be written
    any more stops the recording with one warning, and no request. A full disk leaves no part of a line behind.

    Args:
        path: a ``.jsonl`` file, which grows. OSError where it cannot be opened.
        tenants: whose requests are recorded; "" is everyone's where the server asks for no token.
    """

    def __init__(self, path: Path, tenants: Collection[str]) -> None:
        if not tenants:
            raise ValueError("a recorder needs the tenants who agreed to be recorded; none was given")
        self.path = path
        self.recorded = 0
        self._tenants = frozenset(tenants)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        status = os.fstat(self._fd)
        if stat.S_IMODE(status.st_mode) & 0o077:
            _log.warning("%s: others than its owner may use it; chmod 600 it", self.path)
        # A line that a power cut left unfinished must not swallow the next one.
        if stat.S_ISREG(status.st_mode) and status.st_size and os.pread(self._fd, 1, status.st_size - 1) != b"\n":
            self._append(b"\n")

    def __call__(self, scope: Scope, prompt: Tokens, output: Tokens, prediction: Tokens) -> None:
        """A request of ``scope`` ended with ``output``."""
        if scope.tenant not in self._tenants or self._fd < 0 or not len(output):
            return
        trace = Trace(
            tuple(map(int, prompt)), tuple(map(int, output)), label="recorded", prediction=tuple(map(int, prediction))
        )
        try:
            self._append(json.dumps(trace.as_dict()).encode() + b"\n")
        except OSError as e:
            _log.warning("%s: recording stops: %s", self.path, e)
            self.close()
        else:
            self.recorded += 1

    def _append(self, line: bytes) -> None:
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as e:
                _log.warning("%s: %s", self.path, e)
