"""The real TensorRT-LLM, where it is installed and a GPU is there: the section script, on a small model."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("tensorrt_llm") is None, reason="tensorrt_llm is not installed"),
]


def test_the_real_thing(tmp_path: Path) -> None:
    """Greedy text with our drafter equals text without, tenants share nothing, cancels end, counters arrive."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.gpu_tensorrt_llm", "--json", str(report)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TRTLLM_NO_USAGE_STATS": "1"}, timeout=1200, check=False
    )
    assert done.returncode == 0
    results = json.loads(report.read_text())
    assert results["failures"] == [] and results["drafts"]["accepted"] > 0
