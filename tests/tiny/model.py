"""The decoder: two layers, 32 wide, four heads over two of keys and values."""

from __future__ import annotations

from typing import Any

import torch

from trtserve.model_config import DecoderConfig


def config(**changes: Any) -> DecoderConfig:
    """``changes`` say at least ``vocab_size`` and ``max_position``."""
    fields: dict[str, Any] = {
        "architecture": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    return DecoderConfig(**{**fields, **changes})


def weights(model: DecoderConfig, seed: int = 1, scale: float = 0.3) -> dict[str, torch.Tensor]:
    """Float32, by canonical name; at this scale the text is not one token over and over. Norms are 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if name.endswith("norm") else torch.randn(shape, generator=generator) * scale
        for name, shape in model.tensor_shapes().items()
    }
