"""The output directory, whole or not at all.

A build works in a sibling, ``.NAME.partial-XXXX``, and is renamed into place when it is finished and on disk. An
engine that is already there is exchanged with the new one in one step (renameat2); where the system cannot, it is
first set aside as ``.NAME.old-XXXX``, and whoever builds next puts things right if a crash came between. One build of
a directory runs at a time, held by a lock on ``.NAME.lock``, which the kernel drops with its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtbuild.errors import OutputError
from trtserve import engine_dir

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def locked(out: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the right to build ``out``, after tidying up what a killed build left beside it.

    Waits for another build of the same directory, having said so through ``on_wait``. Makes the parent directories,
    and removes those it made if they are still empty at the end.
    """
    lock = out.parent / f".{out.name}.lock"
    made: list[Path] = []
    try:
        try:
            made = _make_parents(out.parent)
            fd = _acquire(lock, lambda: on_wait(f"{out} is being built by another process; waiting for it"))
        except OSError as e:
            raise OutputError(f"{out}: cannot be written: {e.strerror}; give another path with -o") from e
        try:
            _recover(out)
            yield
        finally:
            lock.unlink(missing_ok=True)  # while still held, so that nobody locks a file about to vanish unnoticed
            os.close(fd)
    finally:
        for directory in reversed(made):
            with contextlib.suppress(OSError):
                directory.rmdir()


def require_replaceable(out: Path, *, force: bool) -> None:
    """Raise OutputError unless ``out`` is free, empty, or an engine directory with nothing of the user's in it.

    ``force`` gives up files that the engine there does not know; never a directory that is no engine.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise OutputError(f"{out}: is not a directory; give another path with -o")
    if not any(out.iterdir()):
        return
    if not (out / engine_dir.MANIFEST_NAME).is_file():
        raise OutputError(
            f"{out}: is not empty and has no {engine_dir.MANIFEST_NAME}, so it is not an engine directory and is not "
            "overwritten; give another path with -o"
        )
    if force:
        return
    try:
        known = set(engine_dir.read(out).files)
    except engine_dir.EngineDirError as e:
        raise OutputError(f"{e} It is not overwritten without --force.") from e
    known.add(engine_dir.MANIFEST_NAME)
    present = {p.relative_to(out).as_posix() for p in out.rglob("*") if not p.is_dir() or p.is_symlink()}
    foreign = sorted(present - known)
    if foreign:
        raise OutputError(
            f"{out}: holds files that are not part of the engine: {', '.join(foreign[:5])}"
            f"{' and more' if len(foreign) > 5 else ''}; move them, or give them up with --force"
        )


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """An empty directory to build in, which takes ``out``'s place when the body ends without an error.

    Call it under ``locked``. On any error nothing is left of it and ``out`` is as it was.
    """
    partial = _sibling(out, "partial")
    partial.mkdir()
    try:
        yield partial
        _flush(partial)
        if not out.exists():
            partial.rename(out)
        elif not _exchange(partial, out):
            old = _sibling(out, "old")
            out.rename(old)
            try:
                partial.rename(out)
            except BaseException:
                old.rename(out)
                raise
            shutil.rmtree(old, ignore_errors=True)
        _sync(out.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after an exchange this is the engine that was replaced


def link(source: Path, directory: Path, names: Iterable[str]) -> None:
    """Give ``directory`` files of ``source``, by their relative names: as links where the file system has them. They
    must not be written to afterwards."""
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, path)
        except OSError:
            shutil.copy2(source / name, path)


def _sibling(out: Path, kind: str) -> Path:
    return out.parent / f".{out.name}.{kind}-{secrets.token_hex(4)}"


def _make_parents(directory: Path) -> list[Path]:
    missing = []
    for parent in (directory, *directory.parents):
        if parent.exists() and not parent.is_dir():
            raise OutputError(f"{parent}: is not a directory; give another path with -o")
        if parent.exists():
            break
        missing.append(parent)
    directory.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _acquire(lock: Path, on_wait: Callable[[], None]) -> int:
    """An open, exclusively locked descriptor of the file that is at ``lock`` now."""
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(fd, fcntl.LOCK_EX)
            # The holder before us removed the file it held; a lock on that one excludes nobody.
            if os.path.samestat(os.fstat(fd), lock.stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _recover(out: Path) -> None:
    """Undo what builds that were killed left beside ``out``. Under the lock none of it is in use."""
    siblings = [p for p in out.parent.iterdir() if p.name.startswith(f".{out.name}.")]
    for path in siblings:
        if path.name.startswith(f".{out.name}.old-") and not out.exists():
            path.rename(out)
    for path in siblings:
        if path.name.startswith((f".{out.name}.partial-", f".{out.name}.old-")) and path.exists():
            shutil.rmtree(path, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two directories in one step. False where the system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done: bool = renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    code = ctypes.get_errno()
    if not done and code not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        raise OSError(code, os.strerror(code), str(b))
    return done


def _flush(directory: Path) -> None:
    """Put every file and directory entry below on the disk."""
    for path in sorted(directory.rglob("*"), reverse=True):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
