"""A tiny Llama checkpoint on disk, and recipes that name it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import checkpoint
from tests.tiny.tokenizer import trained_tokenizer
from trtserve import engine_dir
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, plan_tiers

RECIPE = """\
recipe: 1
name: tiny
model:
  checkpoint: tiny-llama
target: torch
limits: {max_batch_size: 2, max_seq_len: 64, prefill_chunk: 16}
"""


def write_checkpoint(directory: Path, *, seed: int = 0) -> Path:
    """The tiny checkpoint with a tokenizer that has merges."""
    tokenizer = trained_tokenizer(300, ["the quick brown fox jumps over the lazy dog " * 8])
    return checkpoint.write_checkpoint(directory, tokenizer=tokenizer, seed=seed, scale=0.1)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with ``tiny.yaml`` and the checkpoint it names."""
    write_checkpoint(tmp_path / "tiny-llama")
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recipe_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a recipe's text to a file and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "r.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def write_engine() -> Callable[[Path], None]:
    """Writes a manifest and one file of its own into a directory."""

    def write(directory: Path) -> None:
        (directory / "weights.safetensors").write_bytes(b"x")
        limits, speculative = Limits(), Speculative()
        manifest = Manifest(
            name="e",
            target="torch",
            model=DecoderConfig(
                architecture="llama", vocab_size=4, hidden_size=2, intermediate_size=2, num_layers=1, num_heads=1,
                num_kv_heads=1, head_dim=2, max_position=16, rms_norm_eps=1e-5,
            ),
            tokenizer=TokenizerRecord(vocab_size=4),
            limits=limits,
            speculative=speculative,
            tiers=plan_tiers(limits, speculative),
            inputs_digest="0" * 64,
            weights_digest="0" * 64,
            tokenizer_digest="0" * 64,
            built_with={},
        )  # fmt: skip
        engine_dir.write(directory, manifest)

    return write
