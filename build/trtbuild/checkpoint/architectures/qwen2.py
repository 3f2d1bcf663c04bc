"""Qwen2 and Qwen2.5: biases on q, k and v always, never on o; sliding windows in the upper layers when switched on."""

from __future__ import annotations

from trtbuild.checkpoint.architectures.base import Architecture
from trtbuild.checkpoint.fields import Fields
from trtbuild.checkpoint.layer_windows import layer_windows
from trtserve.model_config import DecoderConfig, Dtype


class Qwen2(Architecture):
    name = "qwen2"
    hf_class = "Qwen2ForCausalLM"
    gguf_interleaved = False

    def from_hf(self, fields: Fields, dtype: Dtype) -> DecoderConfig:
        return self.common_hf(fields, dtype, attention_bias=True, sliding_windows=layer_windows(fields))


ARCHITECTURE = Qwen2()
