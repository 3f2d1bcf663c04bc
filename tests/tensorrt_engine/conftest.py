"""The installed TensorRT-RTX; without it this directory's tests are skipped, for nothing here stands in for it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def trt() -> Any:
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")
