"""The runtime: an engine directory in, text out, with prompt-lookup decoding.

The Python API is ``Engine`` and the names beside it; the rest of the package is for those who extend it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtserve.engine.protocol import (
        Completion,
        Delta,
        EngineClosedError,
        EngineError,
        Finish,
        QueueFullError,
        RequestError,
        Scope,
    )
    from trtserve.facade import Engine
    from trtserve.sampling import SamplingParams

__all__ = [
    "Completion",
    "Delta",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "Finish",
    "QueueFullError",
    "RequestError",
    "SamplingParams",
    "Scope",
]

_HOMES = {"Engine": "trtserve.facade", "SamplingParams": "trtserve.sampling"}


def __getattr__(name: str) -> Any:
    # Imported when first used: reading a manifest must not load the model's libraries.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "trtserve.engine.protocol")), name)
    globals()[name] = value
    return value
