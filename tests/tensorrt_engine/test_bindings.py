"""The protocols that type-check our TensorRT calls say what the bindings say: those installed, and full TensorRT's.

Full TensorRT's libraries need a GPU machine; what its bindings print is recorded in ``tensorrt_api.json``, and read
again from the bindings where they are installed (its libraries are not needed for that). To record a later version:
``RECORD=1 pytest tests/tensorrt_engine/test_bindings.py``.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.kernel_emulation import compiler
from tests.plugins.tensorrt_stand_in import build_libraries
from trtbuild.network import trt_types
from trtbuild.targets.tensorrt import RTX_COMPUTE_CAPABILITIES
from trtserve.executor import tensorrt_types

from .bindings_api import api_of, parameters

RECORD = Path(__file__).with_name("tensorrt_api.json")
PACKAGE = "tensorrt-cu13-bindings"

CLASSES = {
    (module, node.name): node
    for module in (trt_types, tensorrt_types)
    for node in ast.parse(Path(inspect.getfile(module)).read_text()).body
    if isinstance(node, ast.ClassDef)
}

#: Protocols of the module itself.
MODULES = {"TensorRT", "TensorRTRTX"}
#: Protocols of what is callable in it: types, whose constructors print no signature of their own.
CALLABLE = {"WeightsType", "BuilderType", "RuntimeType"}
#: Protocols under another name than the class they describe.
RENAMED = {"IBuilderConfigRTX": "IBuilderConfig"}
#: What the classes have that are made of the module's: the runtime calls these.
SUBCLASSED = {"ILogger": ["log"], "IProgressMonitor": ["phase_start", "step_complete", "phase_finish"]}
#: What only TensorRT-RTX has. Code that uses it asks first which runtime it is.
RTX_ALONE = {
    "": {"ComputeCapability", "CudaGraphStrategy"},
    "IBuilderConfig": {"num_compute_capabilities", "set_compute_capability"},
    "IRuntimeConfig": {"cuda_graph_strategy", "create_runtime_cache", "set_runtime_cache"},
    "IRuntimeCache": {"serialize", "deserialize"},
    "CudaGraphStrategy": {"WHOLE_GRAPH_CAPTURE"},
}


def declared() -> dict[str, dict[str, list[str] | None]]:
    """Of each class, every member the protocols declare: a method's parameter names, None for what is no method."""
    found: dict[str, dict[str, list[str] | None]] = {
        owner: dict.fromkeys(members) for owner, members in SUBCLASSED.items()
    }
    for (_, name), node in CLASSES.items():
        if name in CALLABLE:
            continue
        members = found.setdefault("" if name in MODULES else RENAMED.get(name, name), {})
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                members[item.target.id] = None
            elif isinstance(item, ast.FunctionDef) and item.decorator_list:
                members[item.name] = None
            elif isinstance(item, ast.FunctionDef) and not item.name.startswith("__"):
                members[item.name] = [a.arg for a in item.args.args[1:]]
    return found


DECLARED = declared()
WANTED = {owner: sorted(members) for owner, members in sorted(DECLARED.items())}
MEMBERS = [(owner, name) for owner, members in WANTED.items() for name in members]


@pytest.fixture(scope="module")
def rtx(trt: Any) -> dict[str, dict[str, list[str]]]:
    return api_of(trt, WANTED)


@pytest.fixture(scope="module")
def full() -> dict[str, dict[str, list[str]]]:
    return json.loads(RECORD.read_text())["api"]  # type: ignore[no-any-return]


def check(api: dict[str, dict[str, list[str]]], owner: str, name: str) -> None:
    assert name in api[owner], f"{owner or 'the module'} has no {name}"
    wanted = DECLARED[owner][name]
    if wanted is not None:
        given = [parameters(s) for s in api[owner][name]]
        assert any(names[: len(wanted)] == wanted for names in given), f"declared {wanted}, bindings {given}"


@pytest.mark.parametrize(("owner", "name"), MEMBERS)
def test_tensorrt_rtx_has_what_is_declared(rtx: dict[str, dict[str, list[str]]], owner: str, name: str) -> None:
    check(rtx, owner, name)


@pytest.mark.parametrize(("owner", "name"), MEMBERS)
def test_full_tensorrt_has_what_is_declared(
    rtx: dict[str, dict[str, list[str]]], full: dict[str, dict[str, list[str]]], owner: str, name: str
) -> None:
    """The network's code takes the module as a parameter: each call must mean the same in both."""
    if name in RTX_ALONE.get(owner, set()):
        assert name not in full.get(owner, {}), "full TensorRT has it too by now"
        return
    check(full, owner, name)
    # Properties print nothing; of a method, full TensorRT has the same overloads, types included, and perhaps more.
    assert set(rtx[owner][name]) <= set(full[owner][name])


def test_the_record_is_what_the_bindings_say(tmp_path: Path) -> None:
    for module in ("tensorrt_bindings", "tensorrt_libs"):
        found = importlib.util.find_spec(module) is not None
        if found != (module == "tensorrt_bindings"):
            pytest.skip(f"needs {PACKAGE}, without TensorRT's libraries")
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    build_libraries(tmp_path)
    script = Path(__file__).with_name("bindings_api.py")
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, input=json.dumps(WANTED), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said = {"package": PACKAGE, **json.loads(done.stdout.splitlines()[-1])}
    if os.environ.get("RECORD"):
        RECORD.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    recorded = json.loads(RECORD.read_text())
    if recorded["version"] != said["version"]:
        pytest.skip(f"recorded of {recorded['version']}, installed is {said['version']}")
    assert recorded == said


def test_the_compute_capabilities_are_the_runtimes(trt: Any) -> None:
    members = {name for name in dir(trt.ComputeCapability) if re.fullmatch(r"SM\d+", name)}
    assert members == {f"SM{c}" for c in RTX_COMPUTE_CAPABILITIES}
