"""docs/recipes.md lists every key of a recipe with the default and the range that the schema has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtbuild import targets
from trtbuild.recipe import json_schema

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
LOOKUP = "speculative.prompt_lookup."


def leaves(root: dict[str, Any], node: dict[str, Any], key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(dotted key, schema) of every value that is no section."""
    options = [root["$defs"][n["$ref"].rsplit("/", 1)[-1]] if "$ref" in n else n for n in node.get("anyOf", [node])]
    sections = [option for option in options if "properties" in option]
    if not sections:
        yield key, node
    for section in sections:
        for name, child in section["properties"].items():
            yield from leaves(root, child, f"{key}.{name}" if key else name)


def table() -> dict[str, tuple[str, str]]:
    """Key to its cells for default and range."""
    keys = PAGE.read_text(encoding="utf-8").partition("## Checkpoints")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \|", keys, re.MULTILINE)
    return {key.replace("….", LOOKUP): (default, allowed) for key, default, allowed in rows}


def test_the_table_of_keys_is_the_schemas() -> None:
    schema, documented = json_schema(), table()
    own = tuple(f"{name}." for name in targets.names())
    keys = {key: leaf for key, leaf in leaves(schema, schema) if not key.startswith(own)}
    assert keys.keys() - documented.keys() == set()
    for key, leaf in keys.items():
        default, allowed = documented[key]
        if "default" in leaf:
            assert default.strip("`") == str(leaf["default"]).lower(), key
        else:
            assert default.startswith("required"), key
        if "minimum" in leaf:
            assert allowed == f"{leaf['minimum']} to {leaf['maximum']}", key
        if "enum" in leaf and not allowed.startswith("as "):
            assert set(re.findall(r"`(\w+)`", allowed)) >= set(leaf["enum"]), key
