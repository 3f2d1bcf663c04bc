"""What TensorRT-RTX compiles is kept between starts, and a file that is not to be trusted is not used."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtserve.executor.kernel_cache import MAGIC, Identity, KernelCache, default_directory, directory_of
from trtserve.executor.tensorrt_session import Session

from .fake_gpu import FakeGpu
from .test_cuda_session import call_of, gpu_of, info_of

Open = Callable[..., Session]
IDENTITY = Identity("tensorrt_rtx 1.7.1.116", "ab" * 32, "Fake GPU", 89, 13000)


def start(trt: Any, open_fake: Open, kept: Path | None, *shapes: tuple[int, int], **gpu: Any) -> FakeGpu:
    """One start and end of a session that runs these shapes."""
    device = gpu_of(trt, info_of(), **{k: v for k, v in gpu.items() if k not in ("driver", "refuse", "plan")})
    device.driver = gpu.get("driver", 13000)
    device.refuse |= gpu.get("refuse", set())
    session = open_fake(device, info_of(), kernels=kept, plan_digest=gpu.get("plan", "ab" * 32))
    for slots, rows in shapes:
        session.enqueue(call_of(session, slots, rows))
    session.close()
    return device


def test_a_second_start_compiles_nothing(trt: Any, open_fake: Open, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = start(trt, open_fake, kept, (1, 2), (2, 3))
    assert first.compiled == ["profile 0", "shape (1, 2)", "shape (2, 3)"]
    assert start(trt, open_fake, kept, (1, 2), (2, 3)).compiled == []
    # What a later start compiles is added to it.
    assert start(trt, open_fake, kept, (1, 3)).compiled == ["shape (1, 3)"]
    assert start(trt, open_fake, kept, (1, 2), (1, 3)).compiled == []
    (file,) = kept.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_session_that_dies_leaves_what_its_contexts_compiled(trt: Any, open_fake: Open, tmp_path: Path) -> None:
    device = gpu_of(trt, info_of())
    session = open_fake(device, info_of(), kernels=tmp_path, plan_digest="ab" * 32)
    session.enqueue(call_of(session, 1, 2))  # and never closed
    assert start(trt, open_fake, tmp_path, (1, 2)).compiled == ["shape (1, 2)"]


@pytest.mark.parametrize(
    "other",
    [{"capability": (8, 6)}, {"driver": 13010}, {"plan": "cd" * 32}],
    ids=["another GPU", "another driver", "another plan"],
)
def test_each_gpu_driver_and_plan_has_its_own_file(
    trt: Any, open_fake: Open, tmp_path: Path, other: dict[str, Any]
) -> None:
    start(trt, open_fake, tmp_path / "kept", (1, 2))
    assert start(trt, open_fake, tmp_path / "kept", (1, 2), **other).compiled == ["profile 0", "shape (1, 2)"]
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert start(trt, open_fake, tmp_path / "kept", (1, 2)).compiled == []


def test_what_the_runtime_rejects_is_compiled_again_and_replaced(
    trt: Any, open_fake: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(trt, open_fake, tmp_path / "kept", (1, 2))
    (file,) = (tmp_path / "kept").iterdir()
    before = file.read_bytes()
    rejecting = start(trt, open_fake, tmp_path / "kept", (1, 3), refuse={"kernels"})
    assert rejecting.compiled == ["profile 0", "shape (1, 3)"]
    assert [r.getMessage() for r in caplog.records] == [
        f"{file} is ignored, kernels are compiled again: the runtime rejected it: the runtime gave no reason"
    ]
    assert file.read_bytes() != before


def test_it_can_be_turned_off_and_is_off_without_a_plan_digest(trt: Any, open_fake: Open, tmp_path: Path) -> None:
    for kept, plan in ((None, "ab" * 32), (tmp_path / "kept", "")):
        assert start(trt, open_fake, kept, (1, 2), plan=plan).compiled == ["profile 0", "shape (1, 2)"]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("refusal", ["cache", "attach"])
def test_a_runtime_without_such_a_cache_runs_on(
    trt: Any, open_fake: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, refusal: str
) -> None:
    start(trt, open_fake, tmp_path / "kept", (1, 2), refuse={refusal})
    assert "the runtime keeps no compiled kernels" in caplog.text
    assert not (tmp_path / "kept").exists()


def test_a_runtime_that_gives_nothing_out_writes_nothing(trt: Any, open_fake: Open, tmp_path: Path) -> None:
    start(trt, open_fake, tmp_path / "kept", (1, 2), refuse={"serialize"})
    assert not (tmp_path / "kept").exists()


def test_full_tensorrt_has_no_kernels_to_keep(trt: Any, open_fake: Open, tmp_path: Path) -> None:
    info = info_of(runtime="tensorrt")
    open_fake(gpu_of(trt, info), info, kernels=tmp_path / "kept", plan_digest="ab" * 32).close()
    assert not (tmp_path / "kept").exists()


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "a" / "b", IDENTITY)
    assert cache.read() is None
    assert cache.write(b"kernels")
    assert KernelCache(tmp_path / "a" / "b", IDENTITY).read() == b"kernels"
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == [IDENTITY.file_name]


def test_what_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, IDENTITY)
    cache.write(b"kernels")
    os.utime(cache.path, (0, 0))
    assert cache.write(b"kernels")
    again = KernelCache(tmp_path, IDENTITY)
    again.read()
    assert again.write(b"kernels")
    assert cache.path.stat().st_mtime == 0


def spoil(content: bytes) -> dict[str, bytes]:
    return {
        "it is not a file of compiled kernels": b"x" * 100,
        "it is damaged": content[:-1],
        "it is damaged ": content[:-1] + bytes([content[-1] ^ 1]),
        "it is damaged  ": MAGIC + b"{",
        "it is damaged   ": MAGIC + b"[]\n",
        "it is for gpu 'Fake GPU', here 'Other GPU'; driver 13000, here 12000": content,
        "it is not a file of compiled kernels ": b"",
    }


@pytest.mark.parametrize("reason", spoil(b" "))
def test_a_foreign_or_damaged_file_is_ignored_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    whole = KernelCache(tmp_path, IDENTITY)
    whole.write(b"kernels")
    identity = replace(IDENTITY, gpu="Other GPU", driver=12000) if "Other" in reason else IDENTITY
    cache = KernelCache(tmp_path, identity)
    content = spoil(whole.path.read_bytes())[reason]
    cache.path.write_bytes(content)
    cache.path.chmod(0o600)
    assert cache.read() is None
    assert reason.strip() in caplog.text
    assert f"{cache.path} is ignored, kernels are compiled again" in caplog.text
    assert cache.write(b"new")
    assert KernelCache(tmp_path, identity).read() == b"new"


def test_a_file_that_others_could_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is code that the runtime will run."""
    cache = KernelCache(tmp_path, IDENTITY)
    cache.write(b"kernels")
    cache.path.chmod(0o620)
    assert cache.read() is None
    assert "others than its owner could have written it" in caplog.text


def test_something_else_in_its_place_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = KernelCache(tmp_path, IDENTITY)
    cache.path.mkdir()
    assert cache.read() is None
    assert not cache.write(b"kernels")
    assert len(caplog.records) == 2
    assert [p.name for p in tmp_path.iterdir()] == [cache.path.name]  # nothing half written is left


def test_a_directory_that_cannot_be_written_is_said_once_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        assert not KernelCache(blocked / "below", IDENTITY).write(b"kernels")
    (record,) = caplog.records
    assert "the next start compiles them again. --kernel-cache names another directory, or off" in record.getMessage()


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == directory_of(None) == tmp_path / "trtlookup"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_directory() == Path("/home/someone/.cache/trtlookup")
    assert directory_of("off") is None
    assert directory_of("/var/kernels") == Path("/var/kernels")
