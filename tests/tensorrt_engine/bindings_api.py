"""What a TensorRT module's bindings say of themselves: the signatures they print, and which names they have.

``python bindings_api.py DIR`` asks full TensorRT's, in a process of its own: ``DIR`` has libraries for them to load.
Names wanted come in as JSON, ``{class: [member]}``, and what is there goes out, ``{class: {member: [signature]}}``.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any


def api_of(module: Any, wanted: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Of each wanted member that exists, its signatures, without the module's name; none for what is no method.

    The class "" is the module itself.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for owner, members in wanted.items():
        source = getattr(module, owner, None) if owner else module
        found[owner] = {
            name: _signatures(name, getattr(source, name).__doc__ or "")
            for name in members
            if source is not None and hasattr(source, name)
        }
    return found


def parameters(signature: str) -> list[str]:
    """The names of a signature's parameters, without ``self``."""
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    return [part.split(":")[0].strip() for part in re.split(r", (?=\w+:)", inside) if part][1:]


def _signatures(name: str, text: str) -> list[str]:
    lines = re.findall(rf"^(?:\d+\. )?({re.escape(name)}\(self: .*\) -> .*)$", text, re.MULTILINE)
    return [re.sub(r"\btensorrt(?:_rtx)?_bindings\.tensorrt(?:_rtx)?\.|\bnvinfer1::", "", line) for line in lines]


if __name__ == "__main__":
    for library in sorted(Path(sys.argv[1]).glob("*.so*")):
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    import tensorrt_bindings

    found = api_of(tensorrt_bindings, json.load(sys.stdin))
    print(json.dumps({"version": tensorrt_bindings.__version__, "api": found}))
