"""The shared cache as a file.

Little-endian, one after the other::

    header   magic 8 B | version u32 | key length u32 | scopes u32 | 0 u32 | bytes of the whole file u64 |
             saved at i64 | model key 32 B | key id 16 B | digest of the header 16 B
    scope    name 32 B | tokens u64 | documents u64 | stored at i64 | tokens u32 [n] | seen u16 [n]
    ...      most recently used first
    digest   32 B, of everything before

Digests are BLAKE2b under the snapshot's key, so what was damaged, and what was written by somebody without the key, is
told from what this project wrote. Nothing of a file is used before its digest was found right, and nothing is allocated
for a length that the file is too short for.

The texts are in the file as token ids, in the clear. Whose they are is not: see ``scope_names``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np

from trtserve.lookup.scope_names import SnapshotError
from trtserve.lookup.shared import SavedScope
from trtserve.settings import MAX_KEY_LENGTH, MAX_SCOPES

MAGIC = b"TRTLSC\r\n"
VERSION = 2

_HEADER = struct.Struct("<8s4IQq32s16s")
_HEADER_DIGEST = 16
_RECORD = struct.Struct("<32s2Qq")
_DIGEST = 32
_BLOCK = 1 << 20

_START = _HEADER.size + _HEADER_DIGEST
"""Bytes before the first scope."""


class Header(NamedTuple):
    """What a snapshot says of itself."""

    version: int
    key_length: int
    scopes: int
    bytes: int
    saved_at: int  # seconds since 1970
    model_key: str


class ScopeRecord(NamedTuple):
    """One scope of a snapshot, without its text."""

    name: str
    tokens: int
    documents: int
    stored_at: int
    offset: int  # of the tokens, from the file's start

    @property
    def bytes(self) -> int:
        """In the file."""
        return _RECORD.size + _text_bytes(self.tokens)


class Snapshot:
    """An open snapshot that was found to be whole. Iterating gives the scopes' texts, most recently used first.

    Raises SnapshotError, whose message has the reason, for anything but a snapshot written under ``key``, and
    FileNotFoundError where there is no file.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        # Not blocking: a FIFO in the file's place must not hold up a start.
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise SnapshotError(f"cannot be opened: {e.strerror}") from e
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise SnapshotError("is not a regular file")
            self.header = self._read_header(status.st_size, key)
            self._check_digest(key)
            self.records: Sequence[ScopeRecord] = self._read_records()
        except OSError as e:
            self.close()
            raise SnapshotError(f"cannot be read: {e.strerror}") from e
        except BaseException:
            self.close()
            raise

    def _read_header(self, size: int, key: bytes) -> Header:
        raw = self._exactly(0, min(_START, size))
        if not raw.startswith(MAGIC[: len(raw)]) or not raw:
            raise SnapshotError("is not a snapshot of the shared cache")
        if len(raw) >= 12 and (version := int.from_bytes(raw[8:12], "little")) != VERSION:
            which = "a newer version" if version > VERSION else "an older version"
            raise SnapshotError(f"has format {version}, {which}; this trtserve reads {VERSION}")
        if size < _START + _DIGEST:
            raise SnapshotError(f"is truncated: {size} bytes, at least {_START + _DIGEST} expected")
        _, version, key_length, scopes, _, length, saved_at, model, key_id = _HEADER.unpack_from(raw)
        if key_id != _key_id(key):
            raise SnapshotError("was written under another key")
        if raw[_HEADER.size :] != _digest(key, _HEADER_DIGEST, raw[: _HEADER.size]):
            raise SnapshotError("is damaged: the header's digest does not match")
        if length != size:
            raise SnapshotError(f"is {'truncated' if size < length else 'too long'}: {size} bytes, {length} expected")
        if not 1 <= key_length <= MAX_KEY_LENGTH or scopes > MAX_SCOPES:
            raise SnapshotError(f"is damaged: key length {key_length}, {scopes} scopes")
        return Header(version, key_length, scopes, length, saved_at, model.hex())

    def _check_digest(self, key: bytes) -> None:
        digest = hashlib.blake2b(digest_size=_DIGEST, key=key)
        offset, end = 0, self.header.bytes - _DIGEST
        while offset < end:
            block = self._exactly(offset, min(_BLOCK, end - offset))
            digest.update(block)
            offset += len(block)
        if digest.digest() != self._exactly(end, _DIGEST):
            raise SnapshotError("is damaged: the digest does not match")

    def _read_records(self) -> list[ScopeRecord]:
        """Where the scopes are, each checked to lie within the file."""
        records = []
        offset, end = _START, self.header.bytes - _DIGEST
        for _ in range(self.header.scopes):
            if end - offset < _RECORD.size:
                raise SnapshotError("is damaged: fewer scopes than its header says")
            name, tokens, documents, stored_at = _RECORD.unpack(self._exactly(offset, _RECORD.size))
            offset += _RECORD.size
            if _text_bytes(tokens) > end - offset:
                raise SnapshotError(f"is damaged: a scope of {tokens} tokens in {end - offset} bytes")
            records.append(ScopeRecord(name.hex(), tokens, documents, stored_at, offset))
            offset += _text_bytes(tokens)
        if offset != end:
            raise SnapshotError("is damaged: more bytes than its scopes have")
        if len({record.name for record in records}) != len(records):
            raise SnapshotError("is damaged: a scope occurs twice")
        return records

    def text(self, record: ScopeRecord, most_tokens: int | None = None) -> SavedScope:
        """A scope's text, of ``most_tokens`` its newest."""
        first = 0 if most_tokens is None else max(record.tokens - most_tokens, 0)
        count = record.tokens - first
        try:
            tokens = self._exactly(record.offset + 4 * first, 4 * count)
            seen = self._exactly(record.offset + 4 * record.tokens + 2 * first, 2 * count)
        except OSError as e:
            raise SnapshotError(f"cannot be read: {e.strerror}") from e
        return SavedScope(
            record.name,
            np.frombuffer(tokens, "<u4").astype(np.uint32, copy=False),
            np.frombuffer(seen, "<u2").astype(np.uint16, copy=False),
            record.documents,
            record.stored_at,
        )

    def __iter__(self) -> Iterator[SavedScope]:
        return map(self.text, self.records)

    def _exactly(self, offset: int, count: int) -> bytes:
        """``count`` bytes, which the file is known to have."""
        parts = []
        while count:
            part = os.pread(self._fd, min(count, 1 << 30), offset)
            if not part:
                raise SnapshotError("is truncated: it became shorter while it was read")
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def write(path: Path, key: bytes, model_key: str, key_length: int, scopes: Iterable[SavedScope]) -> int:
    """Replace ``path`` by a snapshot of ``scopes``, most recently used first, in one step. Returns its bytes.

    The texts are taken from ``scopes`` one at a time. Until the new file is whole and on disk, under ``path`` is the
    old one. Raises OSError where it cannot be written; then the old file is as it was.
    """
    partial = path.with_name(path.name + ".partial")
    with contextlib.suppress(FileNotFoundError):  # of a process that was killed
        partial.unlink()
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "r+b", buffering=0) as file:
            size = _write(file, key, model_key, key_length, scopes)
            os.fsync(fd)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    # The new name, too, should outlast a power cut; where the file system cannot promise that, the file is still good.
    with contextlib.suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    return size


def _write(file: BinaryIO, key: bytes, model_key: str, key_length: int, scopes: Iterable[SavedScope]) -> int:
    # How many scopes there are and how long they are is known only afterwards, so the header is written last; the
    # digest of all, which begins with the header, takes a second pass over what is then in the page cache.
    file.seek(_START)
    count, size = 0, _START
    for scope in scopes:
        record = _RECORD.pack(bytes.fromhex(scope.name), len(scope.tokens), scope.documents, scope.stored_at)
        tokens = np.ascontiguousarray(scope.tokens, "<u4")
        seen = np.ascontiguousarray(scope.seen, "<u2")
        for part in (record, tokens.view(np.uint8).data, seen.view(np.uint8).data):
            _write_all(file, part)
        count, size = count + 1, size + len(record) + _text_bytes(len(tokens))
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        key_length,
        count,
        0,
        size + _DIGEST,
        int(time.time()),
        bytes.fromhex(model_key),
        _key_id(key),
    )
    file.seek(0)
    _write_all(file, header + _digest(key, _HEADER_DIGEST, header))
    file.seek(0)
    digest = hashlib.blake2b(digest_size=_DIGEST, key=key)
    while block := file.read(_BLOCK):
        digest.update(block)
    _write_all(file, digest.digest())
    return size + _DIGEST


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _text_bytes(tokens: int) -> int:
    return 6 * tokens


def _digest(key: bytes, size: int, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=size, key=key, person=b"header").digest()


def _key_id(key: bytes) -> bytes:
    """Tells keys apart, and nothing else about them."""
    return hashlib.blake2b(digest_size=16, key=key, person=b"key id").digest()
