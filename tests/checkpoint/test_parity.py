"""Logits equal transformers' on the same weights, for every architecture and every switch a config can set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtbuild.checkpoint import open_checkpoint
from trtserve.model_config import RopeConfig

from .tiny import executor_logits, random_tokens, save, tiny_model, transformers_logits

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-mha-untied": ("llama", {"num_key_value_heads": 4}),
    "llama-gqa-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-mqa-biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 32, "rms_norm_eps": 1e-3}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 11}),
    "qwen2-gqa-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-mha": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2-upper-layers-slide": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}}),
    "qwen3-gqa-tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-mha-biases": ("qwen3", {"num_key_value_heads": 4, "attention_bias": True}),
    "qwen3-layer-types": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3-yarn-attention-factor": ("qwen3", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    kind, settings = CASES[case]
    model, tokens = tiny_model(kind, **settings), random_tokens()
    expected = transformers_logits(model, tokens)
    assert expected.std() > 0.3  # logits near zero would agree whatever we compute
    checkpoint = open_checkpoint(str(save(model, tmp_path / "model")), base_dir=tmp_path)
    for native in (True, False):
        np.testing.assert_allclose(executor_logits(checkpoint, tokens, native=native), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", ["mistral-window", "qwen2-upper-layers-slide", "llama-llama3", "llama-yarn"])
def test_ignoring_the_switch_would_show(case: str, tmp_path: Path) -> None:
    """The parity above has teeth: without the window or the scaling, these logits are far off."""
    kind, settings = CASES[case]
    model, tokens = tiny_model(kind, **settings), random_tokens()
    checkpoint = open_checkpoint(str(save(model, tmp_path / "model")), base_dir=tmp_path)
    ignored = checkpoint.config("float32").model_copy(update={"sliding_windows": (), "rope": RopeConfig()})
    difference = np.abs(executor_logits(checkpoint, tokens, config=ignored) - transformers_logits(model, tokens))
    assert difference.max() > 0.05
