"""A schema's complaint in the reader's words: where, which key, what was given, what is allowed.

Everything said about a key is derived from the JSON Schema, so a target's own section is explained as well as the
rest without writing a message for it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from trtbuild.errors import Problem
from trtbuild.recipe_source import Located

_NOUNS = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
}


def explain(error: ValidationError, source: Located, schema: dict[str, Any]) -> list[Problem]:
    """Every error as a Problem, in the order of the source. ``schema`` is the root's JSON Schema."""
    problems = []
    for detail in error.errors(include_url=False):
        loc = detail["loc"]
        node, key = source.find(loc), dotted(loc)
        parent = _schema_at(schema, loc[:-1])
        if detail["type"] == "extra_forbidden":
            message = _unknown(str(loc[-1]), sorted(_properties(schema, parent)))
        elif detail["type"] == "missing":
            message = f"is missing; allowed: {allowed(schema, _schema_at(schema, loc))}"
        elif detail["type"] == "value_error":
            message = str(detail["ctx"]["error"])
        else:
            at = _schema_at(schema, loc)
            message = f"given {given(node.plain())}{_hint(str(node.value), _names(schema, at))} "
            message += f"allowed: {allowed(schema, at)}"
        problems.append(Problem(node.where, key, message))
    return sorted(problems, key=lambda p: _order(p.where))


def dotted(loc: Sequence[str | int]) -> str:
    """``("limits", "sizes", 0)`` as ``limits.sizes[0]``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).lstrip(".")


def given(value: object) -> str:
    """The value as one would write it, kept short."""
    if isinstance(value, dict):
        return "a mapping"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def allowed(root: dict[str, Any], node: dict[str, Any] | None) -> str:
    """What a schema node admits, in words."""
    node = _resolve(root, node or {})
    if "anyOf" in node:
        options = list(dict.fromkeys(allowed(root, option) for option in node["anyOf"]))
        return " or ".join(options)
    if "const" in node:
        return node["const"] if isinstance(node["const"], str) else given(node["const"])
    if "enum" in node:
        return ", ".join(map(str, node["enum"]))
    kind = node.get("type")
    if kind == "object":
        names = sorted(node.get("properties", {}))
        return f"a mapping of {', '.join(names)}" if names else "a mapping"
    if kind == "null":
        return "null"
    text = _NOUNS.get(str(kind), str(kind) if kind else "another value")
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        text += f" from {low} to {high}"
    elif low is not None:
        text += f" of at least {low}"
    elif high is not None:
        text += f" of at most {high}"
    if "exclusiveMinimum" in node:
        text += f" above {node['exclusiveMinimum']}"
    if "exclusiveMaximum" in node:
        text += f" below {node['exclusiveMaximum']}"
    if kind == "string" and "pattern" in node:
        text += f" that matches {node['pattern']}"
    if kind == "string" and node.get("minLength") == 1:
        text += " that is not empty"
    if kind == "array" and "items" in node:
        text += f" of: {allowed(root, node['items'])}"
    return text


def _unknown(key: str, names: list[str]) -> str:
    return f"is not a known key{_hint(key, names)} allowed: {', '.join(names)}"


def _hint(word: str, names: list[str]) -> str:
    """``; did you mean NAME?`` when one of the names is close, and a plain separator when none is."""
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ";"


def _names(root: dict[str, Any], node: dict[str, Any] | None) -> list[str]:
    """The texts a schema node admits, where it lists them."""
    options = _alternatives(root, node)
    return [
        str(v)
        for option in options
        for v in (*option.get("enum", ()), *([option["const"]] if "const" in option else []))
    ]


def _resolve(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = root["$defs"][str(node["$ref"]).rsplit("/", 1)[-1]]
    return node


def _alternatives(root: dict[str, Any], node: dict[str, Any] | None) -> list[dict[str, Any]]:
    node = _resolve(root, node or {})
    return [_resolve(root, option) for option in node["anyOf"]] if "anyOf" in node else [node]


def _properties(root: dict[str, Any], node: dict[str, Any] | None) -> dict[str, Any]:
    return {k: v for option in _alternatives(root, node) for k, v in option.get("properties", {}).items()}


def _schema_at(root: dict[str, Any], loc: Sequence[str | int]) -> dict[str, Any] | None:
    node: dict[str, Any] | None = root
    for step in loc:
        if isinstance(step, int):
            node = next((option["items"] for option in _alternatives(root, node) if "items" in option), None)
        else:
            node = _properties(root, node).get(step)
        if node is None:
            return None
    return node


def _order(where: str) -> tuple[int, int]:
    """Lines of the file in their order, then overrides as given (the sort is stable)."""
    line = where.rsplit(":", 1)[-1]
    return (0, int(line)) if line.isdigit() and not where.startswith("--set ") else (1, 0)
