"""Qwen3 (dense): RMSNorm on each query and key head before RoPE; ``attention_bias`` covers q, k, v and o alike."""

from __future__ import annotations

from trtbuild.checkpoint.architectures.base import Architecture
from trtbuild.checkpoint.fields import Fields
from trtbuild.checkpoint.layer_windows import layer_windows
from trtserve.model_config import DecoderConfig, Dtype


class Qwen3(Architecture):
    name = "qwen3"
    hf_class = "Qwen3ForCausalLM"
    gguf_interleaved = False

    def from_hf(self, fields: Fields, dtype: Dtype) -> DecoderConfig:
        bias = fields.get("attention_bias", bool, False)
        # The class's default is 128 whatever the hidden size; an explicit null falls back like everyone's.
        head_dim = {} if fields.given("head_dim") else {"head_dim": 128}
        return self.common_hf(
            fields,
            dtype,
            qk_norm=True,
            attention_bias=bias,
            output_bias=bias,
            sliding_windows=layer_windows(fields),
            **head_dim,
        )


ARCHITECTURE = Qwen3()
