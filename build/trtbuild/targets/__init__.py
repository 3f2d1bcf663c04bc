"""The targets: one module each, found by its file name, exposing its ``Target`` as ``TARGET``.

A module must import without the tools it builds with: the recipe's schema and ``--help`` read every target.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from trtbuild.targets.base import BuildInput, BuildOutput, DraftInput, Target

__all__ = ["BuildInput", "BuildOutput", "DraftInput", "Target", "get", "names"]


@functools.cache
def names() -> tuple[str, ...]:
    """Every target's name, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base" and not m.ispkg))


def get(name: str) -> Target:
    """The target of this name, one of ``names()``."""
    target: Target = importlib.import_module(f"{__name__}.{name}").TARGET
    return target
