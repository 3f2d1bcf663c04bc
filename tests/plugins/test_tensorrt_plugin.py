"""The TensorRT plugins, told to TensorRT's own Python; and which acceptance a build gets."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtplugins.tensorrt_plugin import choose_acceptance

from .kernel_emulation import compiler
from .tensorrt_stand_in import build_libraries


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TensorRT is told of each plugin."""
    for module in ("tensorrt_bindings", "cuda.bindings"):
        if importlib.util.find_spec(module.split(".")[0]) is None:
            pytest.skip(f"needs {module}")
    if importlib.util.find_spec("tensorrt_libs") is not None:
        pytest.skip("TensorRT's own libraries are here: benchmarks/gpu.sh builds a real engine")
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("libraries")
    build_libraries(folder)
    script = Path(__file__).parent / "plugin_dry_run.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "suffix"), [("float32", "f32"), ("float16", "f16"), ("bfloat16", "bf16")])
def test_row_candidates(told: dict[str, Any], dtype: str, suffix: str) -> None:
    plugin = told[dtype]
    assert plugin["kernel"] == f"tl_row_candidates_{suffix}" and plugin["is_ptx"]
    assert plugin["types"] == ["DataType.INT32"]
    assert plugin["shapes"] == [[2, 9, 4, 2]]
    assert (plugin["grid"], plugin["block"]) == ([4, 18, 1], [256, 1, 1])
    assert plugin["scalars"] == [["ShapeExpr", 1000]]
    assert plugin["combinations"] == [[f"DataType.{t}", "DataType.INT32"] for t in ("FLOAT", "HALF", "BF16")]


@pytest.mark.slow
def test_accept(told: dict[str, Any]) -> None:
    plugin = told["accept"]
    assert plugin["kernel"] == "tl_accept_candidates" and plugin["is_ptx"]
    assert plugin["types"] == ["DataType.INT32"] * 3
    assert plugin["shapes"] == [[2, 9], [2], [2]]
    assert (plugin["grid"], plugin["block"]) == ([2, 1, 1], [128, 1, 1])
    assert plugin["scalars"] == [["ShapeExpr", 9], ["ShapeExpr", 4]], "rows, then splits, as the kernel takes them"


@pytest.mark.parametrize(
    ("builder", "wanted", "kind"),
    [
        ("tensorrt", "plugin", "plugin"),
        ("tensorrt", "layers", "layers"),
        ("tensorrt_rtx", "plugin", "layers"),
        ("tensorrt_rtx", "layers", "layers"),
    ],
)
def test_which_acceptance(builder: str, wanted: str, kind: str) -> None:
    choice = choose_acceptance(builder, wanted)
    assert choice.kind == kind and choice.reason


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="plugin or layers"):
        choose_acceptance("tensorrt", "magic")
