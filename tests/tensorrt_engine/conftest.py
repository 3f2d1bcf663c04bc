"""The installed TensorRT-RTX; without it this directory's tests are skipped, for nothing here stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.executor.tensorrt_session import Session

from .fake_gpu import FakeGpu


@pytest.fixture(scope="session")
def trt() -> Any:
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")


@pytest.fixture
def open_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Opens the GPU session's own code on a fake GPU; further arguments are those of ``open_session``."""

    def open_on(gpu: FakeGpu, info: io.PlanInfo, **options: Any) -> Session:
        monkeypatch.setattr(tensorrt_cuda.importlib, "import_module", gpu.import_module)
        path = tmp_path / info.plan
        path.write_bytes(b"plan")
        try:
            return tensorrt_cuda.open_session(path, info, 0, **options)
        finally:
            monkeypatch.undo()

    return open_on
