"""Recipes that name the tiny checkpoint, and their engine directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trtbuild import builder
from trtbuild.recipe import load_recipe


def recipe(target: str, checkpoint: Path, **sections: Any) -> dict[str, Any]:
    """A recipe with short matches and four slots; ``sections`` are merged into it."""
    made: dict[str, Any] = {
        "recipe": 1,
        "name": "tiny",
        "model": {"checkpoint": str(checkpoint)},
        "target": target,
        "limits": {"max_batch_size": 4, "max_seq_len": 256, "prefill_chunk": 32},
        "speculative": {
            "prompt_lookup": {"ngram": 2, "min_match": 2, "max_drafts": 8, "batch_max_drafts": 3, "max_seqs": 4}
        },
    }
    for key, section in sections.items():
        made[key] = _merged(made.get(key, {}), section)
    return made


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def build(directory: Path, described: dict[str, Any]) -> Path:
    """The engine directory of a recipe."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "recipe.yaml"
    path.write_text(yaml.safe_dump(described))
    out = directory / "engine"
    builder.build(builder.prepare(load_recipe(path)), out, measure=False)
    return out
