"""RoPE frequencies and tables against transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trtserve.model_config import RopeConfig
from trtserve.rope import inverse_frequencies, tables

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "default": ({"rope_type": "default", "rope_theta": 10000.0}, RopeConfig()),
    "theta": ({"rope_type": "default", "rope_theta": 1e6}, RopeConfig(theta=1e6)),
    "linear": (
        {"rope_type": "linear", "rope_theta": 5e5, "factor": 3.0},
        RopeConfig(kind="linear", theta=5e5, factor=3.0),
    ),
    "llama3": (
        {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 8192, **LLAMA3},
        RopeConfig(kind="llama3", theta=5e5, original_max_position=8192, **LLAMA3),
    ),
    "yarn": (
        {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
        RopeConfig(kind="yarn", theta=1e6, factor=4.0, original_max_position=32768),
    ),
    "yarn-betas": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e5,
            "factor": 2.5,
            "original_max_position_embeddings": 100,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
        RopeConfig(
            kind="yarn",
            theta=1e5,
            factor=2.5,
            original_max_position=100,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    ),
    "yarn-attention-factor": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e5,
            "factor": 2.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.25,
        },
        RopeConfig(kind="yarn", theta=1e5, factor=2.0, original_max_position=64, attention_factor=1.25),
    ),
    "yarn-mscale": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e5,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
        RopeConfig(kind="yarn", theta=1e5, factor=40.0, original_max_position=4096, mscale=1.0, mscale_all_dim=0.7),
    ),
}


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("case", CASES)
def test_frequencies_and_tables_equal_transformers(case: str, head_dim: int) -> None:
    parameters, config = CASES[case]
    reference = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=2 * head_dim,
            num_attention_heads=2,
            head_dim=head_dim,
            max_position_embeddings=131072,
            rope_parameters=dict(parameters),
        )
    )
    frequencies, scale = inverse_frequencies(config, head_dim)
    assert frequencies.dtype == np.float32
    # Two float32 steps: torch's power is good to one, and the blends add another.
    np.testing.assert_allclose(frequencies, reference.inv_freq.numpy(), rtol=2.4e-7)
    assert scale == pytest.approx(float(reference.attention_scaling), rel=1e-12)

    cos, sin = tables(config, head_dim, 600)
    want_cos, want_sin = reference(torch.zeros(1, dtype=torch.float32), torch.arange(600)[None])
    assert cos.shape == sin.shape == (600, head_dim // 2)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(cos, want_cos[0, :, : head_dim // 2].numpy(), atol=2e-4)
    np.testing.assert_allclose(sin, want_sin[0, :, : head_dim // 2].numpy(), atol=2e-4)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match="'llama3' needs original_max_position"):
        inverse_frequencies(RopeConfig(kind="llama3", factor=8.0), 64)
