"""Tiny random models of every architecture, saved by transformers, and logits from this project's executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from trtbuild.checkpoint import Checkpoint
from trtserve.executor.torch import TorchExecutor
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, plan_tiers

CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
POSITIONS = 160
"""Longer than every window and original context of the tests."""


def tiny_model(kind: str, **settings: Any) -> PreTrainedModel:
    """A float32 model whose every parameter is random and large enough to show in the logits."""
    values: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2 * POSITIONS,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **({"sliding_window": None} if kind == "mistral" else {}),
        **settings,
    }
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**values), attn_implementation="eager")
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    return model.float().eval()


def transformers_logits(model: PreTrainedModel, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(torch.from_numpy(tokens).long()[None]).logits[0].numpy()
    return logits


def executor_logits(
    checkpoint: Checkpoint, tokens: NDArray[np.int32], *, native: bool = True, config: DecoderConfig | None = None
) -> NDArray[np.float32]:
    """Logits of every token, the sequence cut into prefill chunks so that the cache is read across them."""
    config = config or checkpoint.config("float32")
    limits = Limits(max_batch_size=1, max_seq_len=len(tokens), prefill_chunk=64)
    tiers = plan_tiers(limits, Speculative())
    executor = TorchExecutor(config, checkpoint.tensors(), limits, tiers, native=native, threads=1)
    try:
        return np.concatenate([executor.logits(0, at, tokens[at : at + 64]) for at in range(0, len(tokens), 64)])
    finally:
        executor.close()


def random_tokens(vocab_size: int = 128, count: int = POSITIONS) -> NDArray[np.int32]:
    return np.random.default_rng(3).integers(0, vocab_size, count).astype(np.int32)


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    return directory
