"""Imports point one way: the builder uses the runtime's data and executors, the runtime uses the kernels."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What the builder may know of the runtime: descriptions that both sides read, and the executors it measures.
ALLOWED = (
    "trtserve.engine.tensorrt_llm.recorded",
    "trtserve.engine.tensorrt_llm.versions",
    "trtserve.engine_dir",
    "trtserve.executor",
    "trtserve.host_memory",
    "trtserve.model_config",
    "trtserve.overrides",
    "trtserve.rope",
    "trtserve.settings",
    "trtserve.token_bytes",
    "trtserve.triton.interface",
    "trtserve.triton.placement",
)


def imports(package: str) -> set[tuple[str, str]]:
    """(file, module) of every import below a package, those inside functions included."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {(name, f"{node.module}.{alias.name}") for alias in node.names}
    return found


def of(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_nothing_imports_the_builder_and_the_kernels_import_nothing_of_ours() -> None:
    assert not [i for i in imports("runtime/trtserve") if of(i[1], "trtbuild")]
    assert not [i for i in imports("plugins/trtplugins") if of(i[1], "trtbuild", "trtserve")]


def test_the_builder_knows_the_runtimes_data_and_executors_only() -> None:
    assert not [i for i in imports("build/trtbuild") if of(i[1], "trtserve") and not of(i[1], *ALLOWED)]
