"""Contract files, read and put together."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).parents[1] / "contracts"
LINES = ("1.2", "1.3", "1.4")


class ContractError(TypeError, AttributeError):
    """A use of TensorRT-LLM that the contract does not have."""


@functools.cache
def _read(line: str) -> str:
    return (DIRECTORY / f"{line}.yaml").read_text(encoding="utf-8")


def load(line: str) -> dict[str, Any]:
    """A line's contract, what it extends put in."""
    contract: dict[str, Any] = yaml.safe_load(_read(line))
    base_name = contract.pop("extends", None)
    if base_name is None:
        return contract
    base = load(base_name.removesuffix(".yaml"))
    overrides = contract.pop("overrides", [])
    base["sources"] |= contract.pop("sources", {})
    base |= contract
    for override in overrides:
        *way, last = override["path"]
        place = base
        for key in way:
            place = place[key]
        if "add" in override:
            place[last] += override["add"]
        elif "move" in override:
            place[last][override["move"]["to"]] = place[last].pop(override["move"]["from"])
        else:
            place[last] = override["set"]
    return base
