"""Llama (and what shares its class: SmolLM, TinyLlama, Yi, ...).

``attention_bias`` covers q, k, v and o alike. GGUF also files Mistral under this name; its converter leaves the
sliding window out, so such a file attends to everything.
"""

from __future__ import annotations

from trtbuild.checkpoint.architectures.base import Architecture
from trtbuild.checkpoint.fields import Fields
from trtserve.model_config import DecoderConfig, Dtype


class Llama(Architecture):
    name = "llama"
    hf_class = "LlamaForCausalLM"
    gguf_interleaved = True

    def from_hf(self, fields: Fields, dtype: Dtype) -> DecoderConfig:
        bias = fields.get("attention_bias", bool, False)
        return self.common_hf(
            fields, dtype, attention_bias=bias, output_bias=bias, mlp_bias=fields.get("mlp_bias", bool, False)
        )


ARCHITECTURE = Llama()
