"""What ``trtbuild`` leaves in an engine directory of target ``tensorrt_llm``, beside the manifest.

``llm_args.yaml``
    The arguments of ``tensorrt_llm.LLM`` (1.3) or of the executor (1.2), all of them plain values. Our drafter is none:
    it is added when the engine is loaded.
``lookup.yaml``
    The lookup settings and what the capacity plan made of them: rows, concurrency, token budget.
``engine/``
    1.2 only: what TensorRT-LLM's builder wrote.

The weights are not copied: the manifest's ``target_info`` says where the checkpoint is and what it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from trtserve.engine_dir import EngineDirError, FileRecord, Manifest, sha256_file

LLM_ARGS_NAME = "llm_args.yaml"
LOOKUP_NAME = "lookup.yaml"
ENGINE_NAME = "engine"

#: Checkpoint files up to this size are hashed again when an engine is loaded; of larger ones the size is compared.
HASHED_AT_LOAD = 16 << 20

Drafting = Literal["none", "trtlookup", "builtin"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckpointRecord(_Record):
    """A checkpoint that an engine refers to."""

    reference: str
    """As the recipe names it."""
    path: str
    """Where it was found, absolute."""
    digest: str
    """SHA-256 over its files' names and SHA-256."""
    files: dict[str, FileRecord]

    def verify(self) -> Path:
        """The checkpoint's directory, if it still is what was built from. Raises EngineDirError."""
        root = Path(self.path)
        if not root.is_dir():
            raise EngineDirError(
                f"the checkpoint {self.reference} was at {root}, where there is no directory now; build the engine "
                "again on this machine"
            )
        for name, record in self.files.items():
            file = root / name
            if not file.is_file():
                raise EngineDirError(f"checkpoint {root}: {name} is missing")
            if (size := file.stat().st_size) != record.bytes:
                raise EngineDirError(f"checkpoint {root}: {name} has {size} bytes, built from {record.bytes}")
            if record.bytes <= HASHED_AT_LOAD and sha256_file(file) != record.sha256:
                raise EngineDirError(f"checkpoint {root}: {name} has other content than was built from")
        return root


class TensorRTLLMInfo(_Record):
    """``target_info`` of the manifest."""

    version: Literal["1.2", "1.3"]
    drafting: Drafting
    """Who drafts: nobody, our drafter, or one that TensorRT-LLM has built in."""
    chain: int = 0
    """Drafts a round of a built-in drafter verifies."""
    max_draft_len: int = 0
    max_concurrency: int = 0
    max_num_tokens: int
    adapters: dict[str, str] = {}
    """LoRA adapters by name: their directories."""
    checkpoint: CheckpointRecord

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> TensorRTLLMInfo:
        try:
            return cls.model_validate(manifest.target_info)
        except ValidationError as e:
            raise EngineDirError(f"{path}: its manifest does not describe a TensorRT-LLM engine: {e}") from e


def read_args(directory: Path) -> dict[str, Any]:
    """``llm_args.yaml``. Raises EngineDirError."""
    path = directory / LLM_ARGS_NAME
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as e:
        raise EngineDirError(f"{path}: cannot be read: {e}") from e
    if not isinstance(loaded, dict):
        raise EngineDirError(f"{path}: is not a mapping of arguments")
    return loaded
