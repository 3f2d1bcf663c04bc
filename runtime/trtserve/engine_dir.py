"""The engine directory's manifest: read and written only here.

An engine directory is what ``trtbuild`` writes and every runtime reads::

    engine.json        the manifest (this module), written last, so a directory without it is no engine
    recipe.yaml        the resolved recipe
    tokenizer/         tokenizer.json, and chat_template.jinja when the checkpoint has one
    ...                the target's own files: weights.safetensors, *.plan, llm_args.yaml
    draft_model/       a draft model's weights.safetensors, where there is one

``load`` refuses a directory that is not exactly what was built: an unknown schema, a manifest or file that changed, a
file that is missing or was added (hidden ones aside, which file managers and file systems leave). It never guesses.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, Tier

SCHEMA_VERSION = 1
MANIFEST_NAME = "engine.json"
RECIPE_NAME = "recipe.yaml"
WEIGHTS_NAME = "weights.safetensors"
TOKENIZER_DIR = "tokenizer"
TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"
#: The manifest's key beside those of ``Manifest``: SHA-256 over all the others, so that no number in it changes unseen.
DIGEST_KEY = "manifest_sha256"
MAX_MANIFEST_BYTES = 64 << 20
DRAFT_MODEL_DIR = "draft_model"

Target = Literal["torch", "tensorrt", "tensorrt_llm"]


class EngineDirError(Exception):
    """An engine directory that cannot be used. The message names the path, what is wrong and what would be right."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(_Record):
    """One file of the directory, by its path relative to it."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class TokenizerRecord(_Record):
    """What serving needs to know about the tokenizer beside its own files."""

    vocab_size: int
    bos_token_id: int | None = None
    add_bos: bool = False
    """Whether a plain completion prompt gets the BOS token in front. A chat template writes its own."""
    eos_token_ids: tuple[int, ...] = ()
    """Any of these ends a sequence, unless the request says ``ignore_eos``."""
    special_tokens: dict[str, str] = {}
    """The named specials a chat template may use: bos_token, eos_token, unk_token, pad_token."""
    chat_template: bool = False


class CostPoint(_Record):
    """The measured time of one verify: ``batch`` sequences of ``rows`` rows each over ``context`` tokens.

    Curves are files that users bring along, and are filled in row by row: the ranges are what can be measured at all.
    """

    batch: int = Field(ge=1, le=1 << 16)
    rows: int = Field(ge=1, le=1 << 16)
    context: int = Field(ge=0, le=1 << 31)
    seconds: float = Field(ge=1e-9, le=1e9)


class CostCurve(_Record):
    """What one verify costs on the machine that measured it; the drafting policy weighs drafts with it."""

    device: str
    threads: int | None = None
    points: tuple[CostPoint, ...]


class DraftModelRecord(_Record):
    """The smaller model of ``drafter: draft_model``. It has the main model's tokenizer."""

    model: DecoderConfig
    weights_digest: str
    """SHA-256 of its weights as built."""
    cost_curve: CostCurve | None = None
    """The cost of its forwards, by batch and context, one row per sequence at least."""


class Choice(_Record):
    """What a build took where it could take one thing or another, and why."""

    chosen: str
    reason: str
    asked: str | None = None
    """What the recipe asked for; None where a recipe has no say."""


class Manifest(_Record):
    """``engine.json``."""

    schema_version: int = SCHEMA_VERSION
    name: str
    target: Target
    model: DecoderConfig
    tokenizer: TokenizerRecord
    limits: Limits
    speculative: Speculative
    tiers: tuple[Tier, ...]
    inputs_digest: str
    """SHA-256 over what of the recipe decides the build and the checkpoint's bytes: equal digests mean there is nothing
    to build."""
    weights_digest: str
    """SHA-256 of the weights as built; with the tokenizer's digest it partitions the shared cache."""
    tokenizer_digest: str
    built_with: dict[str, str]
    """Tool name to version, at least trtlookup and python."""
    cost_curve: CostCurve | None = None
    draft_model: DraftModelRecord | None = None
    target_info: dict[str, Any] = {}
    """The target's own facts, for example a plan's runtime version. Only that target's modules read it."""
    files: dict[str, FileRecord] = {}

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, FileRecord]) -> dict[str, FileRecord]:
        for name in files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
                raise ValueError(f"{name!r} is no path inside the directory")
        return files

    @property
    def model_key(self) -> str:
        """Names this model and tokenizer for everything that must not mix two engines (caches, snapshots)."""
        return hashlib.sha256(f"{self.weights_digest}\n{self.tokenizer_digest}".encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file, as 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def record_files(directory: Path, unchanged: Mapping[str, FileRecord] | None = None) -> dict[str, FileRecord]:
    """Every file below ``directory`` except the manifest, by its POSIX path relative to it. Those of which
    ``unchanged`` has the record are not read."""
    records = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path != directory / MANIFEST_NAME:
            name = path.relative_to(directory).as_posix()
            known = (unchanged or {}).get(name)
            records[name] = known or FileRecord(sha256=sha256_file(path), bytes=path.stat().st_size)
    return records


def write(directory: Path, manifest: Manifest, *, unchanged: Mapping[str, FileRecord] | None = None) -> Manifest:
    """Record the directory's files and write the manifest, durably. Call it last. Returns what was written.
    ``unchanged`` as for ``record_files``."""
    manifest = manifest.model_copy(update={"files": record_files(directory, unchanged)})
    raw = json.loads(manifest.model_dump_json())
    path = directory / MANIFEST_NAME
    partial = path.with_suffix(".json.partial")
    with partial.open("w", encoding="utf-8") as f:
        f.write(json.dumps({**raw, DIGEST_KEY: _manifest_digest(raw)}, indent=1, ensure_ascii=False) + "\n")
        f.flush()
        os.fsync(f.fileno())
    partial.rename(path)
    return manifest


def read(directory: Path) -> Manifest:
    """The manifest, checked for its schema but not against the files. Raises EngineDirError."""
    path = directory / MANIFEST_NAME
    if not directory.is_dir():
        raise EngineDirError(f"{directory}: no such directory; build one with: trtbuild RECIPE -o {directory}")
    if not path.is_file():
        raise EngineDirError(f"{directory}: has no {MANIFEST_NAME}, so it is not a finished engine directory")
    try:
        if (size := path.stat().st_size) > MAX_MANIFEST_BYTES:
            raise EngineDirError(f"{path}: has {size} bytes; a manifest has at most {MAX_MANIFEST_BYTES}")
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise EngineDirError(f"{path}: cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise EngineDirError(f"{path}: is not JSON: {e}") from e
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise EngineDirError(
            f"{path}: schema_version is {version!r}; this trtserve reads {SCHEMA_VERSION}. Rebuild the engine."
        )
    digest = raw.pop(DIGEST_KEY, None)  # a manifest written by hand has none
    if digest is not None and digest != _manifest_digest(raw):
        raise EngineDirError(f"{path}: was changed after the build; its {DIGEST_KEY} is of other content. Rebuild it.")
    try:
        return Manifest.model_validate_json(json.dumps(raw))
    except ValidationError as e:
        problems = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise EngineDirError(f"{path}: is not a valid manifest: {problems}") from e


def load(directory: Path) -> Manifest:
    """The manifest, after checking that every file is there with the recorded size and SHA-256.

    Raises EngineDirError naming each file that is missing, altered or unknown to the manifest.
    """
    manifest = read(directory)
    while problems := _problems(directory, manifest):
        # Where a build replaced the folder between the two reads, its files are those of the new manifest.
        before, manifest = manifest, read(directory)
        if manifest == before:
            shown = "; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if len(problems) > 10 else "")
            raise EngineDirError(f"{directory}: does not match its manifest: {shown}. Rebuild the engine.")
    return manifest


def _problems(directory: Path, manifest: Manifest) -> list[str]:
    problems = []
    try:
        for name, record in manifest.files.items():
            path = directory / name
            if not path.is_file():
                problems.append(f"{name} is missing")
            elif (size := path.stat().st_size) != record.bytes:
                problems.append(f"{name} has {size} bytes, built with {record.bytes}")
            elif sha256_file(path) != record.sha256:
                problems.append(f"{name} has other content than was built")
        problems += [f"{name} is not part of it" for name in unknown_files(directory, manifest)]
    except OSError as e:
        raise EngineDirError(f"{e.filename}: cannot be read: {e.strerror}") from e
    return problems


def unknown_files(directory: Path, manifest: Manifest) -> list[str]:
    """Files of the directory that are not part of the engine, sorted. Hidden ones are nobody's concern."""
    present = (path.relative_to(directory) for path in directory.rglob("*") if not path.is_dir() or path.is_symlink())
    known = {*manifest.files, MANIFEST_NAME}
    return sorted(
        path.as_posix()
        for path in present
        if path.as_posix() not in known and not any(part.startswith(".") for part in path.parts)
    )


def _manifest_digest(raw: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
