"""Checkpoints: what a recipe's ``model.checkpoint`` names, read into canonical tensors, a config and a tokenizer."""

from __future__ import annotations

from pathlib import Path

from trtbuild.checkpoint.base import Checkpoint, CheckpointError
from trtbuild.checkpoint.references import resolve

__all__ = ["Checkpoint", "CheckpointError", "open_checkpoint"]


def open_checkpoint(reference: str, *, base_dir: Path) -> Checkpoint:
    """Open what ``reference`` names: a path (relative ones count from ``base_dir``), ``package:MODULE/FILE`` or
    ``hf:ORG/REPO@REVISION``. A directory is read as Hugging Face's layout, a file as GGUF.

    Raises CheckpointError when it cannot be found, read, or honoured exactly.
    """
    path = resolve(reference, base_dir)
    if path.is_dir():
        from trtbuild.checkpoint.huggingface import HuggingFaceCheckpoint

        return HuggingFaceCheckpoint(path)
    if path.suffix.lower() == ".gguf":
        from trtbuild.checkpoint.gguf_file import GgufCheckpoint

        return GgufCheckpoint(path)
    raise CheckpointError(f"{path}: is neither a directory with config.json and safetensors nor a .gguf file")
