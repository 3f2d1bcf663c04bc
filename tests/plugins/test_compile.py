"""The kernels through NVRTC: every architecture, no spills, and a cache that many processes may share."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from trtplugins import compile as compiling
from trtplugins.compile import CompileError, compile_kernels, kernel_resources

ARCHITECTURES = ["80", "89", "90", "100", "120"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTLOOKUP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ptx_for_every_architecture(cache: Path, architecture: str) -> None:
    ptx = compile_kernels(f"compute_{architecture}")
    assert f".target sm_{architecture}".encode() in ptx
    for name in ("tl_accept_greedy_f16", "tl_accept_sampled_bf16", "tl_accept_candidates", "tl_commit", "tl_lookup"):
        assert f".entry {name}(".encode() in ptx
    assert b"fma.rn.f32" not in ptx, "the host does not fuse either"
    assert b".approx" not in ptx


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_kernel_spills(architecture: str) -> None:
    resources = kernel_resources(f"sm_{architecture}")
    assert len(resources) == 12
    for name, kernel in resources.items():
        assert kernel.spill_bytes == 0, name
        # 1024 threads of these fit a multiprocessor's 65,536 registers, and 48 KiB is what any block may have.
        assert kernel.registers <= 64 and kernel.shared_bytes <= 48 * 1024, (name, kernel)


@pytest.mark.slow
def test_a_second_call_reads_what_the_first_wrote(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernels("compute_90")
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("compiled again"))
    assert compile_kernels("compute_90") == first
    (kept,) = cache.iterdir()
    assert kept.name.startswith("kernels-compute_90-")


def test_another_source_architecture_or_option_is_another_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_compile", lambda architecture, *_: (architecture.encode(), ""))
    assert compile_kernels("compute_90") != compile_kernels("compute_80")
    monkeypatch.setattr(compiling, "OPTIONS", (*compiling.OPTIONS, "-G"))
    compile_kernels("compute_90")
    monkeypatch.setattr(compiling, "kernel_source", lambda: (b"other", {}))
    compile_kernels("compute_90")
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    monkeypatch.setattr(compiling, "_compile", lambda *_: (b"image" * 100, ""))
    compile_kernels("compute_90")
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + b"?" if damage is None else damage)
    assert compile_kernels("compute_90") == b"image" * 100
    assert kept.read_bytes() == whole


def test_without_a_place_to_write_it_still_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRTLOOKUP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(compiling, "_compile", lambda *_: (b"image", ""))
    assert compile_kernels("compute_90") == b"image"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_write_cut_short_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def cut_short(path: Path, target: Path) -> None:
        assert path.read_bytes().endswith(b"image")
        raise error

    monkeypatch.setattr(compiling, "_compile", lambda *_: (b"image", ""))
    monkeypatch.setattr(Path, "replace", cut_short)
    # A full disk is no reason not to go on; an interrupt is.
    with contextlib.nullcontext() if error is OSError else pytest.raises(error):
        assert compile_kernels("compute_90") == b"image"
    assert list(cache.iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLOOKUP_CACHE_DIR", "/a")
    assert compiling.cache_dir() == Path("/a")
    monkeypatch.delenv("TRTLOOKUP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert compiling.cache_dir() == Path("/b/trtlookup")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert compiling.cache_dir() == Path("/c/.cache/trtlookup")


def test_an_unknown_architecture_is_refused(cache: Path) -> None:
    with pytest.raises(CompileError, match="sm_90"):
        compile_kernels("hopper")
    with pytest.raises(CompileError, match="compute_12345"):
        compile_kernels("compute_12345")


WRITER = """
import contextlib
from trtplugins import compile as compiling

image = b"image" * 200_000
compiling._compile = lambda *_: (image, "")
for _ in range(60):
    assert compiling.compile_kernels("compute_90") == image
    for entry in compiling.cache_dir().glob("kernels-compute_90-" + "?" * 32):
        with contextlib.suppress(FileNotFoundError):
            assert len(entry.read_bytes()) == 32 + len(image), "half an image"
            entry.unlink()
"""


def test_processes_write_at_once(cache: Path) -> None:
    """Four processes write, read and delete one entry: whoever reads finds all of it or none."""
    running = [subprocess.Popen([sys.executable, "-c", WRITER], stderr=subprocess.PIPE) for _ in range(4)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert all(len(entry.name) == len("kernels-compute_90-") + 32 for entry in cache.iterdir()), "nothing is left over"
