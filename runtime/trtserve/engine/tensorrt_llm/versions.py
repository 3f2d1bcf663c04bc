"""Which TensorRT-LLM is installed, and which way in it has.

Two generations. ``pytorch`` (1.3 and later): our drafter runs inside its executor. ``engine`` (1.2, the last stable
line with an engine backend): each verify is a request of its own, with external drafts. Versions outside those that
were checked are refused: the seams used here are no promise of TensorRT-LLM's, and a silent change would change texts.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from trtserve.executor.base import ExecutorError

Generation = Literal["engine", "pytorch"]
Order = tuple[int, int, int, float]

_FINAL = float("inf")
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?(?:\.post\d+)?(?:\+[\w.]+)?")


@dataclass(frozen=True)
class Line:
    """A range of versions that was checked, both ends included."""

    generation: Generation
    first: str
    last: str
    recipe: str
    """The recipe's name for it (``tensorrt_llm.version``)."""


LINES = (
    Line("engine", "1.2.0", "1.2.99", "1.2"),
    Line("pytorch", "1.3.0rc21", "1.4.0rc1", "1.3"),
)
WORKING = "1.2.x (final releases) and 1.3.0rc21 to 1.4.0rc1"


def order(version: str) -> Order:
    """A key that sorts versions, release candidates before their release. Raises ValueError for other texts."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ValueError(f"{version!r} is not a version such as 1.2.1 or 1.3.0rc25")
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(patch or 0), _FINAL if candidate is None else int(candidate)


def line_of(version: str) -> Line:
    """The checked range that ``version`` lies in. Raises ExecutorError with the versions that work."""
    try:
        key = order(version)
    except ValueError as e:
        raise ExecutorError(f"TensorRT-LLM: {e}; versions that work: {WORKING}") from e
    for line in LINES:
        if order(line.first) <= key <= order(line.last):
            return line
    raise ExecutorError(f"TensorRT-LLM {version} was not checked with this trtserve; versions that work: {WORKING}")


def installed() -> Any:
    """The ``tensorrt_llm`` package. Raises ExecutorError where it cannot be imported."""
    # It reports its usage to its maker unless told otherwise; a server of ours does so only for those who ask for it.
    os.environ.setdefault("TRTLLM_NO_USAGE_STATS", "1")
    try:
        return importlib.import_module("tensorrt_llm")
    except ImportError as e:
        raise ExecutorError(
            f"target tensorrt_llm needs the package tensorrt_llm ({WORKING}) and an NVIDIA GPU: {e}"
        ) from e


def require(recipe_version: str) -> Any:
    """The installed package, if it is of the line an engine was built for. Raises ExecutorError."""
    package = installed()
    line = line_of(str(package.__version__))
    if line.recipe != recipe_version:
        raise ExecutorError(
            f"this engine was built for TensorRT-LLM {recipe_version}; {package.__version__} is installed. Build it "
            f"again with --set tensorrt_llm.version='{line.recipe}', or install a version of that line"
        )
    return package


def require_parameters(where: str, function: Any, names: Iterable[str]) -> None:
    """Raise ExecutorError unless ``function`` takes all these parameters by name."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    if missing := [name for name in names if name not in parameters]:
        raise ExecutorError(
            f"TensorRT-LLM's {where} does not take {', '.join(missing)}, which this trtserve needs; versions that "
            f"work: {WORKING}"
        )
