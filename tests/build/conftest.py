"""A tiny Llama checkpoint on disk, and recipes that name it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trtserve import engine_dir
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, plan_tiers

VOCAB = 300
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

RECIPE = """\
recipe: 1
name: tiny
model:
  checkpoint: tiny-llama
target: torch
limits: {max_batch_size: 2, max_seq_len: 64, prefill_chunk: 16}
"""


def write_checkpoint(directory: Path, *, seed: int = 0, scale: float = 1.0) -> Path:
    """A random Llama with tied embeddings, as ``save_pretrained`` would write it."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale * 0.1

    h, f, kv = 32, 48, 16
    tensors = {"model.embed_tokens.weight": random(VOCAB, h), "model.norm.weight": torch.ones(h)}
    for i in range(2):
        p = f"model.layers.{i}."
        tensors |= {
            p + "input_layernorm.weight": torch.ones(h),
            p + "self_attn.q_proj.weight": random(h, h),
            p + "self_attn.k_proj.weight": random(kv, h),
            p + "self_attn.v_proj.weight": random(kv, h),
            p + "self_attn.o_proj.weight": random(h, h),
            p + "post_attention_layernorm.weight": torch.ones(h),
            p + "mlp.gate_proj.weight": random(f, h),
            p + "mlp.up_proj.weight": random(f, h),
            p + "mlp.down_proj.weight": random(h, f),
        }
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 8], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


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
