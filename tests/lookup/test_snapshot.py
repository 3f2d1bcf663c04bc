"""The shared cache's file: what comes back is what was saved, or nothing."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trtserve.engine.protocol import Scope
from trtserve.lookup import _native, snapshot
from trtserve.lookup.persistence import Persistence, restore
from trtserve.lookup.scope_names import KeyFile, ScopeNames, SnapshotError
from trtserve.lookup.shared import SavedScope, SharedCache, SharedCopy
from trtserve.lookup.snapshot import Snapshot

from .test_shared import propose, scripts, tiny

KEY = bytes(range(32))
MODEL, OTHER_MODEL = "ab" * 32, "cd" * 32
MARK = 1 << 31
KEY_LENGTH = 4


def name(number: int) -> str:
    return f"{number:064x}"


def document(seed: int, count: int = 300) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 1000, count, dtype=np.int32)


def filled(scopes: int = 2, documents: int = 3) -> SharedCache:
    cache = SharedCache(1, 4, KEY_LENGTH)
    for scope in range(scopes):
        for i in range(documents):
            cache.insert(name(scope), document(100 * scope + i))
    return cache


def texts(cache: SharedCache) -> list[SavedScope]:
    return [saved for scope in cache.scopes() if (saved := cache.save(scope))]


def write(path: Path, cache: SharedCache, *, model: str = MODEL) -> int:
    return snapshot.write(path, KEY, model, cache.key_length, texts(cache))


def same(a: SavedScope, b: SavedScope) -> bool:
    return (a.name, a.documents, a.stored_at) == (b.name, b.documents, b.stored_at) and (
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.seen, b.seen)
    )


def every_copy(cache: SharedCache, scope: str, source: NDArray[np.int32]) -> list[SharedCopy | None]:
    n = cache.key_length
    return [cache.propose(scope, source[i : i + n], 16) for i in range(len(source) - n)]


# ---- a scope's text, out of one cache and into another ---------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(scripts(), scripts(), st.sampled_from([200, 512, 2048]), st.integers(1, 3), st.integers(1, 5))
def test_a_restored_cache_goes_on_as_the_saved_one(
    before: list[tuple[str, list[int], int | None]],
    after: list[tuple[str, list[int], int | None]],
    share: int,
    scopes: int,
    key_length: int,
) -> None:
    old, new = tiny(share * scopes, scopes, key_length), tiny(share * scopes, scopes, key_length)
    for scope, tokens, _ in before:
        old.insert(scope, tokens)
    for scope in reversed(old.names()):
        saved = old.save(scope)
        assert saved is not None
        new.restore(scope, saved[0], saved[1], key_length, *saved[2:])
    assert new.names() == old.names()
    for scope, tokens, limit in after:
        if limit is None:
            old.insert(scope, tokens)
            new.insert(scope, tokens)
        else:
            assert old.ways(scope, tokens, limit + 1, 8) == new.ways(scope, tokens, limit + 1, 8)
    assert new.names() == old.names()
    for scope in old.names():
        assert all(map(np.array_equal, old.save(scope) or (), new.save(scope) or ()))


@pytest.mark.parametrize(("share", "key_length"), [(1 << 13, 4), (1 << 18, 4), (1 << 16, 3), (1 << 16, 6)])
def test_another_size_or_key_length_still_proposes_only_what_was_said(share: int, key_length: int) -> None:
    old = tiny(1 << 16, 1, 4)
    documents = [document(i, 500) for i in range(12)]
    for text in documents:
        old.insert("a", text)
    saved = old.save("a")
    assert saved is not None
    new = tiny(share, 1, key_length)
    new.restore("a", saved[0], saved[1], 4, *saved[2:])
    said = [text.tobytes() for text in documents]
    found = 0
    for text in documents:
        for i in range(len(text) - key_length - 8):
            copy = propose(new, "a", text[i : i + key_length].tolist(), 8)
            if copy is not None:
                found += 1
                whole = np.array([*text[i : i + key_length], *copy[0]], np.int32).tobytes()
                assert any(whole in other for other in said)
    # Of the newest documents at least, most is found; where the ring is larger, of all.
    assert found > (400 if share < 1 << 14 else 3000)


def test_restore_refuses_what_does_not_fit() -> None:
    cache = SharedCache(1, 4, KEY_LENGTH)
    tokens, seen = np.arange(9, dtype=np.uint32), np.zeros(9, np.uint16)
    with pytest.raises(ValueError, match="counts of 8 tokens for 9 tokens"):
        cache.restore(SavedScope("a", tokens, np.zeros(8, np.uint16), 0, 0), KEY_LENGTH)
    assert cache.scopes() == []
    cache.restore(SavedScope("a", tokens, seen, 7, 8), KEY_LENGTH)
    with pytest.raises(ValueError, match="scope a is held already"):
        cache.restore(SavedScope("a", tokens, seen, 7, 8), KEY_LENGTH)
    saved = cache.save("a")
    assert saved is not None and saved.documents == 7 and saved.stored_at == 8
    assert cache.save("b") is None


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=80), st.binary(min_size=160, max_size=160), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_restore_bears_any_tokens_and_counts(values: list[int], counts: bytes, key_length: int) -> None:
    cache = tiny(512, 1, 2)
    tokens = np.array(values, np.uint32)
    seen = np.frombuffer(counts[: 2 * len(values)], np.uint16)
    cache.restore("a", tokens, seen, key_length, 0, 0)
    ids = [value & (MARK - 1) for value in values]
    for i in range(len(ids) - 2):
        cache.propose("a", ids[i : i + 2], 8)
    # Of tokens that the restored text lacks: what it has seen behind others may be proposed as well.
    fresh = [token for token in range(1, 85) if token not in ids][:4]
    cache.insert("a", fresh)
    assert propose(cache, "a", fresh[:2], 2) == (fresh[2:], 2)


def test_saving_beside_inserting_gives_whole_stretches() -> None:
    """Documents count upwards, so within a stretch each token is one more than the token before it."""
    cache = SharedCache(4, 2, KEY_LENGTH)
    cache.insert("a", np.arange(50, dtype=np.int32))
    stop = threading.Event()

    def insert() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            start = 7919 * i % 1_000_000_000
            cache.insert("a", np.arange(start, start + 5000, dtype=np.int32))
            if i % 50 == 0:  # the scope is dropped, and opened again
                cache.insert("b", np.arange(9, dtype=np.int32))
                cache.insert(f"c{i}", np.arange(9, dtype=np.int32))

    owner = threading.Thread(target=insert)
    owner.start()
    try:
        seen = 0
        for _ in range(40):
            saved = cache.save("a")
            if saved is None:
                continue
            seen += 1
            tokens = saved.tokens.astype(np.int64)
            inside = tokens[1:] < MARK
            assert np.all((tokens[1:] - tokens[:-1] % MARK)[inside] == 1)
            assert len(saved.seen) == len(tokens)
        assert seen
    finally:
        stop.set()
        owner.join()


# ---- the file --------------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path) -> None:
    cache = filled()
    path = tmp_path / "cache"
    assert write(path, cache) == path.stat().st_size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Snapshot(path, KEY) as saved:
        assert saved.header.model_key == MODEL and saved.header.key_length == KEY_LENGTH
        assert [r.name for r in saved.records] == cache.scopes() == [name(1), name(0)]
        assert [r.documents for r in saved.records] == [3, 3] and all(r.stored_at > 0 for r in saved.records)
        assert all(map(same, saved, texts(cache)))
        assert sum(r.bytes for r in saved.records) < saved.header.bytes
        new = SharedCache(1, 4, KEY_LENGTH)
        assert restore(new, saved) == sum(r.tokens for r in saved.records)
    assert new.scopes() == cache.scopes() and all(map(same, texts(new), texts(cache)))
    for scope in range(2):
        for seed in range(3):
            source = document(100 * scope + seed)
            copies = every_copy(cache, name(scope), source)
            assert copies == every_copy(new, name(scope), source) and any(copies)
            # Nothing of one scope is in the other.
            assert not any(every_copy(new, name(1 - scope), source))


def test_the_newest_scopes_and_tokens_are_restored_where_not_all_fit(tmp_path: Path) -> None:
    cache = SharedCache(8, 4, KEY_LENGTH)
    for scope in range(4):
        for i in range(30):
            cache.insert(name(scope), document(100 * scope + i, 5000))
    write(tmp_path / "cache", cache)
    small = SharedCache(1, 2, KEY_LENGTH)
    with Snapshot(tmp_path / "cache", KEY) as saved:
        restore(small, saved)
        part = saved.text(saved.records[0], 1001)
        whole = saved.text(saved.records[0])
    assert small.scopes() == [name(3), name(2)] and small.stats().evictions == 0
    assert any(every_copy(small, name(3), document(329, 5000)))
    assert not any(every_copy(small, name(3), document(300, 5000)))
    assert len(part.tokens) == 1001 and np.array_equal(part.tokens, whole.tokens[-len(part.tokens) :])
    assert np.array_equal(part.seen, whole.seen[-len(part.tokens) :])


def test_an_empty_cache_is_a_file_too(tmp_path: Path) -> None:
    write(tmp_path / "cache", SharedCache(1, 4, KEY_LENGTH))
    with Snapshot(tmp_path / "cache", KEY) as saved:
        assert list(saved) == [] and saved.records == []


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "cache"
    write(path, filled(documents=1))
    return path


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_found(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = good.read_bytes()
    # The header is a small part of the file, and worth as many tries as the rest.
    offset = data.draw(st.integers(0, 103) | st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "zero", "swap"]))
    if kind == "flip":
        damaged = bytearray(whole)
        damaged[offset] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        damaged = bytearray(whole[:offset])
    elif kind == "longer":
        damaged = bytearray(whole + data.draw(st.binary(min_size=1, max_size=40)))
    elif kind == "zero":
        damaged = bytearray(whole[:offset] + bytes(len(whole) - offset))
    else:
        damaged = bytearray(whole[offset:] + whole[:offset])
    path = tmp_path / "damaged"
    path.write_bytes(damaged)
    if bytes(damaged) == whole:
        Snapshot(path, KEY).close()
        return
    with pytest.raises(SnapshotError):
        Snapshot(path, KEY)


def signed(header: tuple[object, ...], body: bytes) -> bytes:
    """A file whose digests are right, whatever it says."""
    raw = struct.pack("<8s4IQq32s16s", *header)
    key_id = hashlib.blake2b(digest_size=16, key=KEY, person=b"key id").digest()
    raw = raw[:-16] + key_id
    raw += hashlib.blake2b(raw, digest_size=16, key=KEY, person=b"header").digest() + body
    return raw + hashlib.blake2b(raw, digest_size=32, key=KEY).digest()


@pytest.mark.parametrize(
    ("scopes", "key_length", "body", "message"),
    [
        (1, 4, struct.pack("<32s2Qq", b"a" * 32, 1 << 40, 1, 1), "a scope of 1099511627776 tokens in 0 bytes"),
        (1, 4, struct.pack("<32s2Qq", b"a" * 32, (1 << 64) - 1, 1, 1), "a scope of"),
        (2, 4, struct.pack("<32s2Qq", b"a" * 32, 0, 1, 1), "fewer scopes"),
        (0, 4, b"rest", "more bytes than its scopes have"),
        (2, 4, 2 * struct.pack("<32s2Qq", b"a" * 32, 0, 1, 1), "a scope occurs twice"),
        (300, 4, b"", "300 scopes"),
        (0, 0, b"", "key length 0"),
        (0, 4, None, "truncated: .* expected"),
    ],
)
def test_lengths_are_not_believed(
    tmp_path: Path, scopes: int, key_length: int, body: bytes | None, message: str
) -> None:
    length = 1 << 50 if body is None else 104 + len(body) + 32
    header = (snapshot.MAGIC, snapshot.VERSION, key_length, scopes, 0, length, 0, bytes(32), bytes(16))
    (tmp_path / "cache").write_bytes(signed(header, body or b""))
    with pytest.raises(SnapshotError, match=message):
        Snapshot(tmp_path / "cache", KEY)


def test_reasons_for_refusal(good: Path, tmp_path: Path) -> None:
    whole = good.read_bytes()
    path = tmp_path / "cache"
    for content, message in (
        (b"", "is not a snapshot"),
        (b"PNG" + whole, "is not a snapshot"),
        (whole[:50], "is truncated: 50 bytes"),
        (whole[:-1], "is truncated: .* expected"),
        (whole + b"x", "is too long"),
        (whole[:8] + struct.pack("<I", 3) + whole[12:], "has format 3, a newer version; this trtserve reads 2"),
        (whole[:8] + struct.pack("<I", 1) + whole[12:], "has format 1, an older version; this trtserve reads 2"),
    ):
        path.write_bytes(content)
        with pytest.raises(SnapshotError, match=message):
            Snapshot(path, KEY)
    with pytest.raises(SnapshotError, match="under another key"):
        Snapshot(good, bytes(32))
    with pytest.raises(FileNotFoundError):
        Snapshot(tmp_path / "none", KEY)
    os.mkfifo(tmp_path / "fifo")
    for special in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(SnapshotError, match="is not a regular file"):
            Snapshot(special, KEY)


def test_a_killed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    write(path, filled(scopes=1))
    before = path.read_bytes()
    script = """if True:
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from trtserve.lookup import snapshot
        from trtserve.lookup.shared import SavedScope
        def scopes():
            yield SavedScope("1" * 64, np.arange(9000, dtype=np.uint32), np.zeros(9000, np.uint16), 1, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        snapshot.write(Path(sys.argv[1]), bytes(range(32)), "ab" * 32, 4, scopes())
    """
    done = subprocess.run([sys.executable, "-c", script, path], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    left = tmp_path / "cache.partial"
    assert left.stat().st_size > 9000 and stat.S_IMODE(left.stat().st_mode) == 0o600
    # What it left behind is in nobody's way.
    write(path, filled(scopes=2))
    assert not left.exists()
    with Snapshot(path, KEY) as saved:
        assert len(saved.records) == 2


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    write(path, filled())
    before = path.read_bytes()

    def full_disk() -> Iterator[SavedScope]:
        yield texts(filled())[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        snapshot.write(path, KEY, MODEL, KEY_LENGTH, full_disk())
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_of_scopes() -> None:
    names = ScopeNames(KEY, MODEL)
    scopes = [Scope(), Scope("a"), Scope("a", "x"), Scope("a", "", "x"), Scope("ax"), Scope("", "ax"), Scope("\udcff")]
    assert len({names(s) for s in scopes}) == len(scopes)
    assert all(len(names(s)) == 64 and names(s).startswith(names.tenant(s.tenant)) for s in scopes)
    assert names(Scope("a")) == ScopeNames(KEY, MODEL)(Scope("a"))
    # Neither half can be guessed at without the key, nor carried over to another model.
    for other in (ScopeNames(bytes(32), MODEL), ScopeNames(KEY, OTHER_MODEL)):
        assert other(Scope("a"))[:32] != names(Scope("a"))[:32] and other(Scope("a"))[32:] != names(Scope("a"))[32:]


def test_the_key_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache"
    with pytest.raises(SnapshotError, match="cannot be opened: No such file"):
        KeyFile(path, create=False)
    with KeyFile(path) as first:
        assert len(first.key) == 32 and stat.S_IMODE(first.path.stat().st_mode) == 0o600
        with pytest.raises(SnapshotError, match="another process holds this snapshot"):
            KeyFile(path)
        with KeyFile(path, create=False, lock=False) as reader:
            assert reader.key == first.key
    with KeyFile(path) as again:
        assert again.key == first.key
    again.close()
    first.path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        KeyFile(path).close()
    assert "chmod 600" in caplog.text
    for text in (b"x" * 64, b"ab", b"\xff" * 9):
        first.path.write_bytes(text)
        with pytest.raises(SnapshotError, match="is not a key of 64 hex digits"):
            KeyFile(path)
    first.path.unlink()
    first.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SnapshotError, match="cannot be opened"):
        KeyFile(path)


# ---- one server after another ----------------------------------------------------------------------------------------


def open_cache(path: Path, model: str = MODEL, interval: float = 0.0) -> tuple[SharedCache, Persistence]:
    cache = SharedCache(1, 4, KEY_LENGTH)
    return cache, Persistence(cache, path, model, interval=interval)


def test_the_next_server_proposes_what_this_one_would_have(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cache, file = open_cache(path)
    tenants = [Scope("acme-corp"), Scope("globex-inc"), Scope("acme-corp", salt="s")]
    for i, scope in enumerate(tenants):
        cache.insert(file.names(scope), document(i))
    file.close()
    file.close()
    content = path.read_bytes() + file.path.with_name("cache.key").read_bytes()
    assert b"acme" not in content and b"globex" not in content and MODEL.encode() not in content
    assert {p.name for p in tmp_path.iterdir()} == {"cache", "cache.key"}

    new, again = open_cache(path)
    try:
        for i, scope in enumerate(tenants):
            assert every_copy(new, again.names(scope), document(i)) == every_copy(cache, file.names(scope), document(i))
            assert any(every_copy(new, again.names(scope), document(i)))
            for j in {0, 1, 2} - {i}:
                assert not any(every_copy(new, again.names(tenants[j]), document(i)))
    finally:
        again.close()


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cache, file = open_cache(path)
    assert file.save() and not path.exists()
    cache.insert(file.names(Scope()), document(0))
    assert file.save()
    first = path.stat().st_ino
    assert file.save() and path.stat().st_ino == first
    cache.insert(file.names(Scope()), document(1))
    assert file.save() and path.stat().st_ino != first
    file.close()
    inode = path.stat().st_ino
    open_cache(path)[1].close()
    assert path.stat().st_ino == inode


def test_saved_on_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = threading.Event()
    write_file = snapshot.write

    def note(*args: object) -> int:
        size = write_file(*args)  # type: ignore[arg-type]
        saved.set()
        return size

    monkeypatch.setattr(snapshot, "write", note)
    cache, file = open_cache(tmp_path / "cache", interval=0.001)
    try:
        for i in range(3):
            saved.clear()
            cache.insert(file.names(Scope()), document(i))
            assert saved.wait(60)
    finally:
        file.close()
    assert not any(thread.name == "trtserve-snapshot" for thread in threading.enumerate())


@pytest.mark.parametrize("what", ["damaged", "truncated", "foreign", "newer", "older", "other model", "other key"])
def test_what_cannot_be_used_is_moved_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    path = tmp_path / "cache"
    cache, file = open_cache(path, OTHER_MODEL if what == "other model" else MODEL)
    cache.insert(file.names(Scope()), document(0))
    file.close()
    whole = path.read_bytes()
    content, reason = {
        "damaged": (whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], "is damaged"),
        "truncated": (whole[:500], "is truncated"),
        "foreign": (b"something of mine", "is not a snapshot"),
        "newer": (whole[:8] + b"\x09" + whole[9:], "format 9, a newer version"),
        "older": (whole[:8] + b"\x01" + whole[9:], "format 1, an older version"),
        "other model": (whole, "is of another model or tokenizer, cdcdcdcdcdcd"),
        "other key": (whole, "under another key"),
    }[what]
    path.write_bytes(content)
    if what == "other key":
        (tmp_path / "cache.key").unlink()
    (tmp_path / "cache.bad").write_bytes(b"an earlier one")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        cache, file = open_cache(path)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert reason in record.getMessage() and "moved to cache.bad.1" in record.getMessage()
    assert cache.scopes() == []
    assert (tmp_path / "cache.bad.1").read_bytes() == content
    assert (tmp_path / "cache.bad").read_bytes() == b"an earlier one"
    cache.insert(file.names(Scope()), document(1))
    file.close()
    new, file = open_cache(path)
    assert any(every_copy(new, file.names(Scope()), document(1)))
    file.close()


def test_a_save_that_fails_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, file = open_cache(tmp_path / "cache")
    cache.insert(file.names(Scope()), document(0))
    with monkeypatch.context() as patched:

        def fail(*args: object) -> int:
            raise OSError(28, "No space left on device")

        patched.setattr(snapshot, "write", fail)
        assert not file.save() and not file.save()
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "No space left" in caplog.text
    assert file.stats() == (0, 2, 0.0, 0)
    assert file.save() and (tmp_path / "cache").exists()
    stats = file.stats()
    assert stats[:2] == (1, 2) and stats.seconds > 0 and stats.bytes == (tmp_path / "cache").stat().st_size
    assert file.save() and file.stats() == stats, "nothing had changed"
    file.close()


def test_what_the_last_save_loses_is_said_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, file = open_cache(tmp_path / "cache")
    cache.insert(file.names(Scope()), document(0))

    def fail(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "write", fail)
    assert not file.save()
    file.close()
    assert [r.levelname for r in caplog.records] == ["WARNING"] * 2
    KeyFile(tmp_path / "cache").close()


def test_paths_that_no_file_can_have(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a directory"), (tmp_path / "none" / "cache", "there is no directory")):
        with pytest.raises(SnapshotError, match=message):
            open_cache(path)
    _, file = open_cache(tmp_path / "cache")
    with pytest.raises(SnapshotError, match="another process holds"):
        open_cache(tmp_path / "cache")
    file.close()
    # A link is followed, not replaced.
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "cache")
    cache, file = open_cache(tmp_path / "link")
    cache.insert(file.names(Scope()), document(0))
    file.close()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "cache").is_file()


def test_native_core_takes_arrays_of_its_types_only() -> None:
    cache = _native.SharedCache(1 << 20, 1, 4)
    with pytest.raises(TypeError):
        cache.restore("a", np.zeros((2, 2), np.uint32), np.zeros(4, np.uint16), 4, 0, 0)
