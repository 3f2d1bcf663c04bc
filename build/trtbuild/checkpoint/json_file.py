"""JSON objects from a checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtbuild.checkpoint.base import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError when the file is missing or is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise CheckpointError(f"{path}: does not exist") from e
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise CheckpointError(f"{path}: is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: is not a JSON object")
    return value
