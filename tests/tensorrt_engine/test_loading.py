"""Where an engine directory's executor keeps compiled kernels, as the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtserve import loading
from trtserve.engine_dir import FileRecord
from trtserve.executor import tensorrt_cuda
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.overrides import OverrideError, Overrides

from .test_cuda_session import info_of, manifest_of


@pytest.mark.parametrize(
    ("setting", "kept"), [(None, "cache/trtlookup"), ("off", None), ("elsewhere", "elsewhere")], ids=str
)
def test_the_setting_names_the_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str | None, kept: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen: dict[str, Any] = {}
    monkeypatch.setattr(TensorRTExecutor, "load", lambda path, manifest, **given: seen.update(given))
    given = setting if setting in (None, "off") else str(tmp_path / setting)
    loading.load_executor(tmp_path, manifest_of(), Overrides(kernel_cache=given, device="cuda:1", threads=3))
    assert seen == {"device": 1, "threads": 3, "kernel_cache": None if kept is None else tmp_path / kept}


def test_full_tensorrt_has_no_kernels_to_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(TensorRTExecutor, "load", lambda path, manifest, **given: None)
    manifest = manifest_of(target_info=info_of(runtime="tensorrt").model_dump(mode="json"))
    with pytest.raises(OverrideError, match="full TensorRT"):
        loading.load_executor(tmp_path, manifest, Overrides(kernel_cache=str(tmp_path)))
    for setting in (None, "off"):
        loading.load_executor(tmp_path, manifest, Overrides(kernel_cache=setting))


def test_kernels_are_kept_for_the_plan_that_the_manifest_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def opened(path: Path, info: Any, device: int, **given: Any) -> Any:
        seen.append(given)
        raise OverrideError("far enough")

    monkeypatch.setattr(tensorrt_cuda, "open_session", opened)
    record = FileRecord(sha256="ab" * 32, bytes=1)
    for files in ({"decoder.plan": record}, {}):
        with pytest.raises(OverrideError):
            TensorRTExecutor.load(tmp_path, manifest_of(files=files), kernel_cache=tmp_path)
    assert seen == [{"kernels": tmp_path, "plan_digest": "ab" * 32}, {"kernels": tmp_path, "plan_digest": ""}]
