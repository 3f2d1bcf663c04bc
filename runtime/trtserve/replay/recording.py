"""Recording traces from live traffic: token ids alone, of the tenants that were named, of finished requests."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from pathlib import Path

from trtserve.engine.protocol import Scope
from trtserve.lookup.tokens import Tokens
from trtserve.replay.traces import Trace

_log = logging.getLogger(__name__)


class TraceRecorder:
    """Appends a line of JSON per request to a file that only its owner can read.

    Nothing names the tenant or tells when the request came. The engine's thread calls it; a file that cannot be written
    any more stops the recording with one warning, and no request.

    Args:
        path: a ``.jsonl`` file. OSError where it cannot be opened.
        tenants: whose requests are recorded; "" is everyone's where the server asks for no token.
    """

    def __init__(self, path: Path, tenants: Collection[str]) -> None:
        if not tenants:
            raise ValueError("a recorder needs the tenants who agreed to be recorded; none was given")
        self.path = path
        self.recorded = 0
        self._tenants = frozenset(tenants)
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8")

    def __call__(self, scope: Scope, prompt: Tokens, output: Tokens, prediction: Tokens) -> None:
        """A request of ``scope`` ended with ``output``."""
        if scope.tenant not in self._tenants or self._file.closed or not len(output):
            return
        trace = Trace(
            tuple(map(int, prompt)), tuple(map(int, output)), label="recorded", prediction=tuple(map(int, prediction))
        )
        try:
            self._file.write(json.dumps(trace.as_dict()) + "\n")
            self._file.flush()
        except OSError as e:
            _log.warning("%s: recording stops: %s", self.path, e)
            self.close()
        else:
            self.recorded += 1

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as e:
            _log.warning("%s: %s", self.path, e)
