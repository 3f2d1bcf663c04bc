"""Tiny random decoders of every shape, and the executors that run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtserve.executor.torch import TorchExecutor
from trtserve.model_config import DecoderConfig, RopeConfig
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

LIMITS = Limits(max_batch_size=8, max_seq_len=400, prefill_chunk=256)
TIERS = plan_tiers(LIMITS, Speculative(prompt_lookup=PromptLookup(max_drafts=24, batch_max_drafts=4)))

_LLAMA: dict[str, Any] = {
    "architecture": "llama",
    "vocab_size": 307,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_position": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}

#: Every switch of DecoderConfig, and sizes that are no multiple of any vector.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tie_word_embeddings": False},
    "multi_head": {"num_heads": 5, "num_kv_heads": 5, "head_dim": 8},
    "one_kv_head": {"num_heads": 7, "num_kv_heads": 1, "head_dim": 20},
    "biases": {"attention_bias": True, "output_bias": True, "mlp_bias": True},
    "qk_norm": {"qk_norm": True, "attention_bias": True, "head_dim": 64, "num_layers": 1},
    "window": {"sliding_windows": (37, None), "head_dim": 32},
    "odd_sizes": {"hidden_size": 43, "intermediate_size": 71, "vocab_size": 129, "head_dim": 2},
    "wide_heads": {"head_dim": 128, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1},
    "odd_heads": {"head_dim": 54, "num_heads": 3, "num_kv_heads": 3, "tie_word_embeddings": False},
    "rope_llama3": {
        "rope": RopeConfig(
            kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64
        )
    },
}


def config(shape: str = "llama", dtype: str = "float32", **changes: Any) -> DecoderConfig:
    return DecoderConfig(**{**_LLAMA, **SHAPES[shape], "dtype": dtype, **changes})


def weights(c: DecoderConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights whose logits have a spread of about 1, in the config's dtype."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in c.tensor_shapes().items():
        tensor = torch.randn(shape, generator=generator)
        if name.endswith("norm"):
            tensor = 1 + 0.1 * tensor
        elif len(shape) == 2 and name != "embed":
            tensor = tensor / shape[1] ** 0.5
        elif name != "embed":
            tensor = 0.1 * tensor
        elif c.tie_word_embeddings:
            tensor = tensor / shape[1] ** 0.25
        tensors[name] = tensor.to(getattr(torch, c.dtype))
    return tensors


def executor(c: DecoderConfig, *, tensors: dict[str, Tensor] | None = None, **options: Any) -> TorchExecutor:
    return TorchExecutor(c, (tensors or weights(c)).items(), LIMITS, TIERS, **{"threads": 2, **options})


def tokens(c: DecoderConfig, n: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, c.vocab_size, n).astype(np.int32)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)
