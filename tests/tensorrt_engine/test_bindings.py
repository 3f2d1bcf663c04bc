"""The protocols that type-check our TensorRT calls say what the installed bindings say."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from trtbuild.network import trt_types
from trtbuild.targets.tensorrt import RTX_COMPUTE_CAPABILITIES
from trtserve.executor import tensorrt_types

CLASSES = {
    (module, node.name): node
    for module in (trt_types, tensorrt_types)
    for node in ast.parse(Path(inspect.getfile(module)).read_text()).body
    if isinstance(node, ast.ClassDef)
}

#: Protocols of the project's own: the module itself, and what is callable in it.
OURS = {"TensorRT", "TensorRTRTX", "WeightsType", "BuilderType", "RuntimeType"}
#: Protocols under another name than the class they describe.
RENAMED = {"IBuilderConfigRTX": "IBuilderConfig"}


def methods() -> list[tuple[str, str, list[str]]]:
    """(class, method, parameter names) of every method the protocols declare."""
    found = []
    for (_, name), node in CLASSES.items():
        if name in OURS:
            continue
        found += [
            (RENAMED.get(name, name), item.name, [a.arg for a in item.args.args[1:]])
            for item in node.body
            if isinstance(item, ast.FunctionDef) and not item.decorator_list and not item.name.startswith("__")
        ]
    return found


def attributes() -> list[tuple[str, str]]:
    """(class, name) of every property, attribute and enum member the protocols declare."""
    found = []
    for (_, name), node in CLASSES.items():
        if name in OURS:
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found.append((RENAMED.get(name, name), item.target.id))
            elif isinstance(item, ast.FunctionDef) and item.decorator_list:
                found.append((RENAMED.get(name, name), item.name))
    return found


@pytest.mark.parametrize(("owner", "method", "parameters"), methods(), ids=lambda x: x if isinstance(x, str) else "")
def test_every_method_takes_the_parameters_declared(trt: Any, owner: str, method: str, parameters: list[str]) -> None:
    signatures = re.findall(rf"\b{method}\(self: [^,)]*(?:, )?(.*)\) ->", getattr(getattr(trt, owner), method).__doc__)
    given = [[p.split(":")[0].strip() for p in re.split(r", (?=\w+:)", s) if p] for s in signatures]
    assert any(names[: len(parameters)] == parameters for names in given), f"declared {parameters}, bindings {given}"


@pytest.mark.parametrize(("owner", "attribute"), attributes(), ids=lambda x: x)
def test_every_attribute_exists(trt: Any, owner: str, attribute: str) -> None:
    assert hasattr(getattr(trt, owner), attribute)


def names() -> list[str]:
    """Every name of the module that a protocol of the module declares."""
    return sorted(
        {
            item.target.id
            for (_, name), node in CLASSES.items()
            if name in ("TensorRT", "TensorRTRTX")
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
    )


@pytest.mark.parametrize("name", names())
def test_every_name_of_the_module_exists(trt: Any, name: str) -> None:
    assert hasattr(trt, name)


def test_the_compute_capabilities_are_the_runtimes(trt: Any) -> None:
    members = {name for name in dir(trt.ComputeCapability) if re.fullmatch(r"SM\d+", name)}
    assert members == {f"SM{c}" for c in RTX_COMPUTE_CAPABILITIES}
