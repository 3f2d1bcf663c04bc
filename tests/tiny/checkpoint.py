"""The model as a checkpoint in Hugging Face's layout, as ``save_pretrained`` would write it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tests.tiny.tokenizer import SPECIALS, byte_tokenizer

HIDDEN, MLP, HEADS, KV_HEADS, LAYERS = 32, 48, 4, 2, 2
KV = HIDDEN // HEADS * KV_HEADS


def write_checkpoint(
    directory: Path, *, tokenizer: Tokenizer | None = None, positions: int = 512, seed: int = 1, scale: float = 0.3
) -> Path:
    """Random weights of that scale with tied embeddings, and a byte tokenizer unless another is given."""
    tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
    vocab_size = tokenizer.get_vocab_size()
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    tensors = {"model.embed_tokens.weight": random(vocab_size, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
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
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": vocab_size,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(SPECIALS))
    return directory
