"""The output directory: whole or not at all, whoever is killed when."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtbuild import output_dir
from trtbuild.errors import OutputError
from trtbuild.output_dir import locked, replacing, require_replaceable
from trtserve import engine_dir


def silent(message: str) -> None:
    raise AssertionError(f"nobody should have waited: {message}")


def put(directory: Path, text: str) -> None:
    """Something that is whole only when both files say the same."""
    directory.mkdir(exist_ok=True)
    (directory / "a").write_text(text)
    (directory / "sub").mkdir(exist_ok=True)
    (directory / "sub" / "b").write_text(text)


def read(directory: Path) -> str:
    a, b = (directory / "a").read_text(), (directory / "sub" / "b").read_text()
    assert a == b
    return a


def build(out: Path, text: str) -> None:
    with locked(out, silent), replacing(out) as partial:
        put(partial, text)


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to replace a directory, whatever this file system can."""
    if request.param == "two renames":
        monkeypatch.setattr(output_dir, "_exchange", lambda a, b: False)
    return str(request.param)


def test_builds_and_replaces_leaving_nothing_beside(tmp_path: Path, way: str) -> None:
    out = tmp_path / "engines" / "e"
    for text in ("one", "two", "three"):
        build(out, text)
        assert read(out) == text
        assert [p.name for p in out.parent.iterdir()] == ["e"]


def test_a_failed_build_changes_nothing(tmp_path: Path, way: str) -> None:
    out = tmp_path / "new" / "e"
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), locked(out, silent), replacing(out) as partial:
            put(partial, "half")
            raise error
        assert list(tmp_path.iterdir()) == []  # the parents it made are gone too
    build(out, "old")
    with pytest.raises(ValueError), locked(out, silent), replacing(out) as partial:
        put(partial, "half")
        raise ValueError
    assert read(out) == "old"
    assert [p.name for p in out.parent.iterdir()] == ["e"]


def test_an_old_engine_returns_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "e"
    build(out, "old")
    monkeypatch.setattr(output_dir, "_exchange", lambda a, b: False)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(errno.EIO, "input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError), locked(out, silent), replacing(out) as partial:
        put(partial, "new")
    assert read(out) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_a_new_directory_has_the_usual_permissions(tmp_path: Path) -> None:
    out = tmp_path / "e"
    build(out, "x")
    (tmp_path / "usual").mkdir()
    assert out.stat().st_mode == (tmp_path / "usual").stat().st_mode


KILLED = """
import os, signal, sys
from pathlib import Path
from trtbuild import output_dir
out, when = Path(sys.argv[1]), sys.argv[2]

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

rename = Path.rename
def rename_then_die(self, target):
    rename(self, target)
    if when == "set aside" and ".old-" in Path(target).name or when == "in place" and ".partial-" in self.name:
        die()

if when in ("set aside", "in place"):
    output_dir._exchange = lambda a, b: False
    Path.rename = rename_then_die
if when == "exchanged":
    exchange = output_dir._exchange
    output_dir._exchange = lambda a, b: exchange(a, b) and die()
if when == "flushing":
    output_dir._flush = die
with output_dir.locked(out, print), output_dir.replacing(out) as partial:
    (partial / "a").write_text("new")
    (partial / "sub").mkdir()
    if when == "building":
        die()
    (partial / "sub" / "b").write_text("new")
"""


@pytest.mark.parametrize("when", ["building", "flushing", "set aside", "in place", "exchanged"])
@pytest.mark.parametrize("existing", [True, False], ids=["over an engine", "fresh"])
def test_a_killed_build_is_tidied_up_by_the_next(tmp_path: Path, when: str, existing: bool) -> None:
    out = tmp_path / "e"
    if existing:
        build(out, "old")
    elif when in ("set aside", "exchanged"):
        pytest.skip("there is nothing to set aside")
    result = subprocess.run([sys.executable, "-c", KILLED, str(out), when], check=False)
    assert result.returncode == -signal.SIGKILL
    assert not existing or when == "set aside" or read(out) in ("old", "new")
    if not existing and when != "in place":
        assert not out.exists()
    with locked(out, silent):
        pass
    if existing:
        assert read(out) == ("new" if when in ("in place", "exchanged") else "old")
    assert [p.name for p in tmp_path.iterdir()] == (["e"] if existing or when == "in place" else [])
    build(out, "newer")
    assert read(out) == "newer"
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_other_builds_leftovers_are_left_alone(tmp_path: Path) -> None:
    for name in (".other.partial-1", ".e2.partial-1", ".e.partially", "e.partial-1", ".e.old"):
        (tmp_path / name).mkdir()
    before = sorted(p.name for p in tmp_path.iterdir())
    build(tmp_path / "e", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*before, "e"])


def test_a_second_build_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "e"
    said: list[str] = []
    waiting, order = threading.Event(), []

    def second() -> None:
        def on_wait(message: str) -> None:
            said.append(message)
            waiting.set()

        with locked(out, on_wait), replacing(out) as partial:
            order.append("second")
            put(partial, "second")

    with locked(out, silent), replacing(out) as partial:
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
        put(partial, "first")
    thread.join(10)
    assert order == ["first", "second"]
    assert said == [f"{out} is being built by another process; waiting for it"]
    assert read(out) == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_many_at_once_never_overlap(tmp_path: Path) -> None:
    out, inside, most = tmp_path / "e", [], []

    @contextmanager
    def counted():  # type: ignore[no-untyped-def]
        inside.append(1)
        most.append(len(inside))
        yield
        inside.pop()

    def run(i: int) -> None:
        for j in range(5):
            with locked(out, lambda _: None), counted(), replacing(out) as partial:
                put(partial, f"{i}.{j}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert len(most) == 20
    assert max(most) == 1
    read(out)
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_what_may_be_replaced(tmp_path: Path, write_engine: Callable[[Path], None]) -> None:
    out = tmp_path / "e"
    require_replaceable(out, force=False)
    out.mkdir()
    require_replaceable(out, force=False)
    write_engine(out)
    require_replaceable(out, force=False)


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_engine_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("x")
    for name, message in (("file", "is not a directory"), ("home", "is not an engine directory")):
        with pytest.raises(OutputError, match=message):
            require_replaceable(tmp_path / name, force=force)


def test_files_of_others_in_an_engine_are_given_up_only_with_force(
    tmp_path: Path, write_engine: Callable[[Path], None]
) -> None:
    out = tmp_path / "e"
    out.mkdir()
    write_engine(out)
    (out / "notes").mkdir()
    (out / "notes" / "mine.txt").write_text("x")
    (out / "link").symlink_to("nowhere")
    with pytest.raises(OutputError, match=r"not part of the engine: link, notes/mine\.txt"):
        require_replaceable(out, force=False)
    require_replaceable(out, force=True)


def test_an_unreadable_manifest_is_replaced_only_with_force(tmp_path: Path) -> None:
    (tmp_path / engine_dir.MANIFEST_NAME).write_text('{"schema_version": 99}')
    with pytest.raises(OutputError, match=r"schema_version is 99.*without --force"):
        require_replaceable(tmp_path, force=False)
    require_replaceable(tmp_path, force=True)


def test_exchange_reports_what_it_cannot_explain(tmp_path: Path) -> None:
    if not hasattr(output_dir.ctypes.CDLL(None), "renameat2"):
        pytest.skip("this C library has no renameat2")
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError) as caught:
        output_dir._exchange(tmp_path / "a", tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("out", ["/proc/none/engine", "x" * 300])
def test_a_path_that_cannot_be_written_is_refused_as_such(tmp_path: Path, out: str) -> None:
    with pytest.raises(OutputError, match="cannot be written"), locked(tmp_path / out, print):
        pass
    assert not list(tmp_path.iterdir())
