"""Mistral: no biases; a sliding window, where there is one, holds for every layer and counts the row itself."""

from __future__ import annotations

from trtbuild.checkpoint.architectures.base import Architecture
from trtbuild.checkpoint.fields import MAX_LAYERS, Fields
from trtserve.model_config import DecoderConfig, Dtype


class Mistral(Architecture):
    name = "mistral"
    hf_class = "MistralForCausalLM"

    def from_hf(self, fields: Fields, dtype: Dtype) -> DecoderConfig:
        # An absent window means the class's default of 4096; only an explicit null means none.
        window = fields.raw("sliding_window") if fields.given("sliding_window") else 4096
        if window is not None:
            window = fields.count("sliding_window", 4096)
        layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
        return self.common_hf(fields, dtype, sliding_windows=() if window is None else (window,) * layers)


ARCHITECTURE = Mistral()
