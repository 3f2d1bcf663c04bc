"""Names of scopes that may be written to disk: whose text it is cannot be read from them.

A name is 64 hex digits: 32 that depend on the tenant, then 32 that depend on the whole scope (model, adapter, tenant,
salt), so that a tenant's scopes are found together without knowing their salts. Both are BLAKE2b under a random key,
which is kept in a file of its own beside the snapshot. Without that file a list of likely tenant names is of no use.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType

from trtserve.engine.protocol import Scope
from trtserve.lookup.shared import scope_name

_log = logging.getLogger(__name__)

KEY_BYTES = 32


class SnapshotError(Exception):
    """A snapshot, or the key beside it, that cannot be used. Says which file, what is wrong and what would be right."""


class ScopeNames:
    """Scopes of one model to names, under one key."""

    def __init__(self, key: bytes, model_key: str) -> None:
        self._key = key
        self._model_key = model_key

    def tenant(self, tenant: str) -> str:
        """What the names of all of a tenant's scopes begin with: 32 hex digits."""
        return self._hash(b"tenant", self._model_key, tenant)

    def __call__(self, scope: Scope) -> str:
        """64 hex digits."""
        return self.tenant(scope.tenant) + self._hash(
            b"scope", self._model_key, scope.adapter, scope.tenant, scope.salt
        )

    def _hash(self, what: bytes, *parts: str) -> str:
        text = scope_name(*parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16, key=self._key, person=what).hexdigest()


class KeyFile:
    """The key beside a snapshot, ``FILE.key``, mode 0600. Opening one locks it, so one process writes the snapshot.

    ``create``: make one where there is none. ``lock`` False is for reading the snapshot.

    Raises SnapshotError where it cannot be made or read, is no key, or another process holds it.
    """

    def __init__(self, snapshot: Path, *, create: bool = True, lock: bool = True) -> None:
        self.path = snapshot.with_name(snapshot.name + ".key")
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        try:
            self._fd = os.open(self.path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as e:
            raise SnapshotError(f"{self.path}: the snapshot's key cannot be opened: {e.strerror}") from e
        try:
            if lock:
                self._lock()
            self.key = self._read(create=create)
        except BaseException:
            os.close(self._fd)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotError(
                f"{self.path}: another process holds this snapshot; stop that server first, or choose another path"
            ) from None
        except OSError as e:
            raise SnapshotError(f"{self.path}: cannot be locked: {e.strerror}") from e

    def _read(self, *, create: bool) -> bytes:
        try:
            if stat.S_IMODE(os.fstat(self._fd).st_mode) & 0o077:
                _log.warning("%s: others than its owner may use it; chmod 600 it", self.path)
            text = os.pread(self._fd, 4 * KEY_BYTES, 0)
            if not text and create:
                text = secrets.token_hex(KEY_BYTES).encode() + b"\n"
                os.write(self._fd, text)
                os.fsync(self._fd)
        except OSError as e:
            raise SnapshotError(f"{self.path}: the snapshot's key cannot be used: {e.strerror}") from e
        try:
            key = bytes.fromhex(text.decode("ascii").strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise SnapshotError(
                f"{self.path}: is not a key of {2 * KEY_BYTES} hex digits; put the right one back, or remove it "
                "together with the snapshot"
            )
        return key

    def close(self) -> None:
        """Unlock. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> KeyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
