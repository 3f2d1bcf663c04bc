"""A tiny Llama with random weights and a byte tokenizer, in Hugging Face's layout, and recipes that name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trtbuild import builder
from trtbuild.recipe import load_recipe

HIDDEN, MLP, KV, LAYERS = 32, 48, 16, 2


def write_checkpoint(directory: Path, positions: int = 512) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1, **{piece: i + 2 for i, piece in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    tensors = {"model.embed_tokens.weight": random(len(vocab), HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        tensors |= {
            p + "input_layernorm.weight": torch.ones(HIDDEN),
            p + "self_attn.q_proj.weight": random(HIDDEN, HIDDEN),
            p + "self_attn.k_proj.weight": random(KV, HIDDEN),
            p + "self_attn.v_proj.weight": random(KV, HIDDEN),
            p + "self_attn.o_proj.weight": random(HIDDEN, HIDDEN),
            p + "post_attention_layernorm.weight": torch.ones(HIDDEN),
            p + "mlp.gate_proj.weight": random(MLP, HIDDEN),
            p + "mlp.up_proj.weight": random(MLP, HIDDEN),
            p + "mlp.down_proj.weight": random(HIDDEN, MLP),
        }
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(vocab),
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


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
