"""An engine directory is what was built, or it is refused with what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny.engine import write_tiny_engine
from trtserve import engine_dir
from trtserve.engine_dir import EngineDirError, Manifest

FILES = ("weights.safetensors", "tokenizer/tokenizer.json", "tokenizer/chat_template.jinja", "engine.json")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "engine")
    return tmp_path / "engine"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(directory: Path, signed: bool = True, **changes: object) -> None:
    """Change the manifest, as one who does not know of its digest, or as one who leaves it out."""
    path = directory / "engine.json"
    raw = {**json.loads(path.read_text()), **changes}
    if not signed:
        del raw[engine_dir.DIGEST_KEY]
    path.write_text(json.dumps(raw))


def test_what_was_built_is_read_as_it_was_written(built: Path) -> None:
    manifest = engine_dir.load(built)
    assert set(manifest.files) == {f for f in FILES if f != "engine.json"}
    assert engine_dir.read(built) == manifest


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_by_name(copy: Path, name: str, damage: Callable[[Path], object]) -> None:
    damage(copy / name)
    with pytest.raises(EngineDirError) as e:
        engine_dir.load(copy)
    assert name in str(e.value)


def test_every_number_of_the_manifest_is_covered(copy: Path) -> None:
    path = copy / "engine.json"
    text = path.read_text()
    # A model that reads well and is wrong.
    changed = text.replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e-02')
    assert changed != text
    path.write_text(changed)
    with pytest.raises(EngineDirError, match="changed after the build"):
        engine_dir.read(copy)


def test_added_files_are_refused_and_hidden_ones_are_not(copy: Path) -> None:
    (copy / ".nfs0001").write_text("x")
    (copy / ".cache").mkdir()
    (copy / ".cache" / "x").write_text("x")
    engine_dir.load(copy)
    (copy / "tokenizer" / "added_tokens.json").write_text("{}")
    (copy / "dangling").symlink_to("nowhere")
    with pytest.raises(EngineDirError, match=r"dangling is not part of it; tokenizer/added_tokens.json is not part"):
        engine_dir.load(copy)


def test_a_folder_replaced_while_it_is_read_is_the_new_one(
    copy: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(copy, signed=False, files={"tokenizer/tokenizer.json": {"sha256": "0" * 64, "bytes": 1}})
    read = engine_dir.read

    def read_then_replaced(directory: Path) -> Manifest:
        manifest = read(directory)
        shutil.copy(built / "engine.json", directory)
        return manifest

    monkeypatch.setattr(engine_dir, "read", read_then_replaced)
    assert engine_dir.load(copy) == read(built)


def test_links_to_the_same_content_are_fine(copy: Path, built: Path) -> None:
    (copy / "weights.safetensors").unlink()
    (copy / "weights.safetensors").symlink_to(built / "weights.safetensors")
    engine_dir.load(copy)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"null", "schema_version is None"),
        (b'{"schema_version": 2}', "schema_version is 2; this trtserve reads 1"),
        (b'{"schema_version": "1"}', "schema_version is '1'"),
        (b'{"schema_version": 1}', "not a valid manifest"),
    ],
)
def test_a_manifest_that_is_none(copy: Path, content: bytes, says: str) -> None:
    (copy / "engine.json").write_bytes(content)
    with pytest.raises(EngineDirError, match=says):
        engine_dir.load(copy)


def test_a_manifest_too_large_is_not_read(copy: Path) -> None:
    with (copy / "engine.json").open("r+b") as f:
        f.truncate(1 << 40)  # sparse
    with pytest.raises(EngineDirError, match="a manifest has at most"):
        engine_dir.load(copy)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "tokenizer/../../x", "a\0b"])
def test_a_manifest_names_only_files_inside(copy: Path, name: str) -> None:
    edit(copy, signed=False, files={name: {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(EngineDirError, match="no path inside the directory"):
        engine_dir.load(copy)


def test_a_name_no_file_can_have(copy: Path) -> None:
    edit(copy, signed=False, files={"x" * 5000: {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(EngineDirError, match="cannot be read: File name too long"):
        engine_dir.load(copy)
