"""What ``model.checkpoint`` may say, and what it may not reach."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtbuild.checkpoint import CheckpointError, open_checkpoint
from trtbuild.checkpoint.references import resolve


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package that must never be imported."""
    name = "a_weights_package"
    root = tmp_path / "site" / name
    (root / "data").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (root / "data" / "model.gguf").write_bytes(b"x")
    (tmp_path / "site" / "secret.gguf").write_bytes(b"x")
    (root / "link.gguf").symlink_to(tmp_path / "site" / "secret.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return name


def test_relative_paths_count_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    assert resolve("weights", tmp_path) == tmp_path / "weights"
    assert resolve(str(tmp_path / "weights"), Path("/elsewhere")) == tmp_path / "weights"
    with pytest.raises(CheckpointError, match="missing-one does not exist"):
        resolve("missing-one", tmp_path)


def test_a_packages_file_is_found_without_importing_it(package: str, tmp_path: Path) -> None:
    path = resolve(f"package:{package}/data/model.gguf", tmp_path)
    assert path.read_bytes() == b"x"
    assert package not in sys.modules


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("../secret.gguf", "must lie inside the package"),
        ("data/../../secret.gguf", "must lie inside the package"),
        ("/etc/passwd", "must lie inside the package"),
        ("..\\secret.gguf", "must lie inside the package"),
        ("link.gguf", "must lie inside the package"),
        ("other.gguf", "has no other.gguf"),
        ("", "expected package:MODULE/FILE"),
    ],
)
def test_nothing_outside_the_package_is_reached(inner: str, message: str, package: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve(f"package:{package}/{inner}", tmp_path)


@pytest.mark.parametrize("module", ["no_such_package_here", "os", "a-b", "../x", "trtbuild.checkpoint", ""])
def test_bad_package_names(module: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no package|expected package:MODULE/FILE"):
        resolve(f"package:{module}/file.gguf", tmp_path)


@pytest.mark.parametrize("reference", ["hf:org/repo", "hf:repo@main", "hf:org/repo@", "hf:../x/y@main", "hf:"])
def test_a_hub_reference_names_its_revision(reference: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected hf:ORG/REPO@REVISION"):
        resolve(reference, tmp_path)


def test_a_hub_download_fetches_only_what_a_build_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, object] = {}

    def snapshot_download(repo: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.update(repo=repo, revision=revision, patterns=allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("hf:org/some-model@v1.0", tmp_path) == tmp_path
    assert (asked["repo"], asked["revision"]) == ("org/some-model", "v1.0")
    assert not any("bin" in pattern for pattern in asked["patterns"])  # type: ignore[attr-defined]


def test_a_failed_download_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def snapshot_download(*_: object, **__: object) -> str:
        raise OSError("network is unreachable")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match="download failed: network is unreachable"):
        resolve("hf:org/repo@main", tmp_path)


def test_without_huggingface_hub_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="pip install 'trtlookup"):
        resolve("hf:org/repo@main", tmp_path)


def test_a_file_that_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="neither a directory"):
        open_checkpoint("weights.pt", base_dir=tmp_path)
