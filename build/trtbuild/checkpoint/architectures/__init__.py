"""Model architectures, one file each, found by name: ``qwen3.py`` reads model type ``qwen3``.

A file defines ``ARCHITECTURE``, an instance of ``base.Architecture``. Adding a file is all it takes to add one.
"""

from __future__ import annotations

import importlib
import pkgutil

from trtbuild.checkpoint.architectures.base import Architecture
from trtbuild.checkpoint.base import CheckpointError


def names() -> tuple[str, ...]:
    """The model types there is a file for."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name != "base"))


def find(name: str, where: str) -> Architecture:
    """The architecture of a model type. ``where`` names the checkpoint in the error when there is none."""
    if name not in names():
        raise CheckpointError(f"{where}: architecture {name!r} is not supported; supported are {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    architecture: Architecture = module.ARCHITECTURE
    return architecture


def find_gguf(name: str, where: str) -> Architecture:
    """The architecture of a GGUF file's ``general.architecture``."""
    supported = [a.name for a in (find(known, where) for known in names()) if a.gguf_interleaved is not None]
    if name not in supported:
        raise CheckpointError(
            f"{where}: general.architecture is {name!r}; supported in GGUF are {', '.join(supported)}"
        )
    return find(name, where)
