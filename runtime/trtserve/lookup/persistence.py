"""Keeps the shared cache across restarts: restores it from a snapshot, saves it on an interval and at the end."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from trtserve.lookup import snapshot
from trtserve.lookup.scope_names import KeyFile, ScopeNames, SnapshotError
from trtserve.lookup.shared import SharedCache
from trtserve.lookup.snapshot import Snapshot

_log = logging.getLogger(__name__)


class SaveStats(NamedTuple):
    """What became of the saves since the start. What had not changed was not written and does not count."""

    saves: int = 0
    failures: int = 0
    seconds: float = 0.0  # of the last save
    bytes: int = 0  # of the file that it wrote


class Persistence:
    """One cache and its file. Saving runs on a thread of its own, and on the thread that calls ``save`` or ``close``.

    Args:
        cache: restored into by the constructor, so it must be empty.
        path: the snapshot. Beside it lie ``path.key``, while it is written ``path.partial``, and ``path.bad`` if a
            snapshot that could not be used was moved aside.
        model_key: of the engine; a snapshot of another is not used.
        interval: seconds between saves; 0 saves in the end only. What has not changed is not written again.

    A snapshot that cannot be used is ignored and moved aside, with one warning that has the reason.
    SnapshotError where no snapshot could be saved to ``path``, or another process holds it.
    """

    def __init__(self, cache: SharedCache, path: Path, model_key: str, *, interval: float = 0.0) -> None:
        self._cache = cache
        self.path = usable(path)
        self._model_key = model_key
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._failing = False
        self._stats = SaveStats()
        self._pid = os.getpid()
        self._key = KeyFile(self.path)
        self.names = ScopeNames(self._key.key, model_key)
        try:
            self._restore()
            self._saved = self._version()
        except BaseException:
            self._key.close()
            raise
        self._thread = threading.Thread(
            target=self._save_on_interval, args=(interval,), name="trtserve-snapshot", daemon=True
        )
        if interval > 0:
            self._thread.start()

    def save(self) -> bool:
        """Write the cache as it is, unless that is what was written last. From any thread.

        False where it could not be written: that is logged, once in a row of failures, and the old file stays.
        """
        with self._lock:
            version = self._version()
            if version == self._saved:
                return True
            started = perf_counter()
            try:
                # A scope dropped since its name was read is not there any more.
                scopes = filter(None, map(self._cache.save, self._cache.scopes()))
                size = snapshot.write(self.path, self._key.key, self._model_key, self._cache.key_length, scopes)
            except (OSError, MemoryError) as e:
                self._stats = self._stats._replace(failures=self._stats.failures + 1)
                if not self._failing:
                    _log.warning("shared cache: %s could not be saved: %s", self.path, e)
                self._failing = True
                return False
            self._saved, self._failing = version, False
            self._stats = SaveStats(self._stats.saves + 1, self._stats.failures, perf_counter() - started, size)
            _log.debug("shared cache: %d bytes saved in %.0f ms", size, 1000 * self._stats.seconds)
            return True

    def stats(self) -> SaveStats:
        """From any thread; never waits for a save."""
        return self._stats

    def close(self) -> None:
        """Save for the last time and give up the file. A second call does nothing, nor does one in a forked process."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        # What fails now is lost, so it is said even where the saves before have failed as well.
        self._failing = False
        try:
            self.save()
        finally:
            self._key.close()

    def _version(self) -> tuple[int, int]:
        """Changes with the cache's content."""
        stats = self._cache.stats()
        return stats.documents, stats.evictions

    def _save_on_interval(self, interval: float) -> None:
        try:
            while not self._closing.wait(interval):
                self.save()
        except Exception:
            _log.exception("shared cache: saving on an interval stopped; it is still saved on shutdown")

    def _restore(self) -> None:
        try:
            with Snapshot(self.path, self._key.key) as saved:
                if saved.header.model_key != self._model_key:
                    raise SnapshotError(f"is of another model or tokenizer, {saved.header.model_key[:12]}")
                tokens = restore(self._cache, saved)
                _log.info(
                    "shared cache: %d tokens in %d scopes restored from %s",
                    tokens,
                    len(self._cache.scopes()),
                    self.path,
                )
        except FileNotFoundError:
            pass
        except SnapshotError as e:
            _log.warning("shared cache: starts empty, %s %s; moved to %s", self.path, e, _move_aside(self.path).name)


def restore(cache: SharedCache, saved: Snapshot) -> int:
    """Fill an empty cache with a snapshot's most recently used scopes, as far as they fit. Returns the tokens read.

    Under the cache's own key length and sizes it proposes what the saved one would have; see ``SharedCache.restore``.
    """
    # Under another key length stretches are inserted again, which may take less room than they took.
    most = cache.share[2] if saved.header.key_length == cache.key_length else None
    tokens = 0
    for record in reversed(saved.records[: cache.max_scopes]):
        text = saved.text(record, most)
        cache.restore(text, saved.header.key_length)
        tokens += len(text.tokens)
    return tokens


def usable(path: Path) -> Path:
    """``path`` with links followed. SnapshotError where no file can be made there."""
    try:
        path = path.resolve()
        directory = path.is_dir()
    except (OSError, RuntimeError, ValueError) as e:
        raise SnapshotError(f"{path}: is no path for a snapshot: {e}") from e
    if directory or not path.name:
        raise SnapshotError(f"{path}: is a directory; a snapshot needs a file's path")
    if not path.parent.is_dir():
        raise SnapshotError(f"{path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SnapshotError(f"{path}: no file can be written to {path.parent}")
    return path


def _move_aside(path: Path) -> Path:
    """Rename a file that cannot be used, over none that is there. Returns its new path."""
    number, aside = 0, path.with_name(path.name + ".bad")
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.bad.{number}")
    try:
        path.rename(aside)
    except OSError as e:
        raise SnapshotError(f"{path}: cannot be used, and cannot be moved aside: {e.strerror}") from e
    return aside
