"""What an engine is built from, as one digest: equal digests mean there is nothing to build.

The checkpoint's files are hashed whole. Their sizes, times and digests are kept in the engine (``inputs.json``), so
the next run hashes only files whose size or modification time changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trtbuild import __version__
from trtbuild.progress import Progress
from trtserve import engine_dir

INPUTS_NAME = "inputs.json"


class InputFile(BaseModel):
    """One file of the checkpoint as it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    bytes: int
    mtime_ns: int
    sha256: str


class Inputs(BaseModel):
    """``inputs.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    checkpoint: dict[str, object] = {}
    """What the checkpoint's reader says about it."""
    files: tuple[InputFile, ...]


def digest_inputs(
    decisive: dict[str, Any],
    files: Sequence[Path],
    about: dict[str, object],
    known: Inputs | None,
    progress: Progress,
    draft_files: Sequence[Path] = (),
) -> Inputs:
    """Hash what decides the build: a recipe's values that do (``Target.decisive``), the checkpoint's bytes, this
    builder's version.

    ``draft_files``: those of the draft model's checkpoint, recorded under ``draft_model/``. ``known`` is an earlier
    record whose digests hold for files of the same name, size and modification time.
    """
    cached = {f.name: f for f in known.files} if known else {}
    records = []
    named = [(path.name, path) for path in files]
    named += [(f"{engine_dir.DRAFT_MODEL_DIR}/{path.name}", path) for path in draft_files]
    with progress.bar("reading checkpoint", sum(path.stat().st_size for _, path in named)) as advance:
        for name, path in named:
            stat = path.stat()
            seen = cached.get(name)
            digest = seen.sha256 if seen and is_unchanged(path, seen) else engine_dir.sha256_file(path)
            records.append(InputFile(name=name, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=digest))
            advance(stat.st_size)
    everything = {
        "trtlookup": __version__,
        "manifest": engine_dir.SCHEMA_VERSION,
        "recipe": decisive,
        "checkpoint": [[f.name, f.sha256] for f in records],
    }
    digest = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()
    return Inputs(digest=digest, checkpoint=about, files=tuple(records))


def is_unchanged(path: Path, record: InputFile) -> bool:
    """Whether a file has the name, size and modification time of its record."""
    stat = path.stat()
    name = record.name.removeprefix(f"{engine_dir.DRAFT_MODEL_DIR}/")
    return (path.name, stat.st_size, stat.st_mtime_ns) == (name, record.bytes, record.mtime_ns)


def write_inputs(directory: Path, inputs: Inputs) -> None:
    """Keep the record in an engine directory."""
    (directory / INPUTS_NAME).write_text(inputs.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_inputs(directory: Path) -> Inputs | None:
    """The record of an engine directory, or None where there is none that can be read."""
    try:
        return Inputs.model_validate_json((directory / INPUTS_NAME).read_bytes())
    except (OSError, ValidationError):
        return None
