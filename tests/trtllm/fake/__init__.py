"""``installed(line)``: a ``tensorrt_llm`` made from a contract, for the length of a ``with``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType

from . import builder, modules, pytorch
from .contract import LINES, ContractError, load

__all__ = ["LINES", "ContractError", "installed", "load"]


def installed(line: str, version: str | None = None) -> AbstractContextManager[ModuleType]:
    behaviour = builder.BEHAVIOUR if line == "1.2" else pytorch.BEHAVIOUR
    return modules.installed(line, behaviour, version)
