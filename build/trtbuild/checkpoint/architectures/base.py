"""What an architecture's file provides, and what all of them share.

All architectures here are pre-norm decoders with RMSNorm, RoPE, grouped-query attention and SwiGLU. Their files say
which switches of ``DecoderConfig`` they use and how their config spells them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from trtbuild.checkpoint.fields import MAX_LAYERS, Fields
from trtbuild.checkpoint.rope_fields import rope_from_gguf, rope_from_hf
from trtserve.model_config import DecoderConfig, Dtype

HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    **{part: f"self_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkvo"},
    **{part: f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    **{f"{part}_bias": f"mlp.{part}_proj.bias" for part in ("gate", "up", "down")},
}
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    **{part: f"attn_{part}.weight" for part in "qkv"},
    **{f"{part}_bias": f"attn_{part}.bias" for part in "qkv"},
    "o": "attn_output.weight",
    "o_bias": "attn_output.bias",
    **{part: f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    **{f"{part}_bias": f"ffn_{part}.bias" for part in ("gate", "up", "down")},
}


class GgufTensors(NamedTuple):
    """What a GGUF file's tensors say about its config, beside the metadata."""

    shapes: Mapping[str, tuple[int, ...]]
    rope_divisors: NDArray[np.float32] | None  # [head_dim / 2]


class Architecture(ABC):
    """Translates one architecture's config. ``name`` is its Hugging Face ``model_type``, and its file's name."""

    name: str
    hf_class: str
    """The one entry of a Hugging Face config's ``architectures`` that this file reads."""
    gguf_interleaved: bool | None = None
    """Whether GGUF stores q and k with the two halves of each head interleaved. None: GGUF has no such name."""
    silu_names = ("silu", "swish")

    @abstractmethod
    def from_hf(self, fields: Fields, dtype: Dtype) -> DecoderConfig:
        """From a Hugging Face ``config.json``. Reads every field that matters; the caller refuses the rest."""

    def from_gguf(self, fields: Fields, tensors: GgufTensors, dtype: Dtype) -> DecoderConfig:
        """From GGUF metadata, the architecture's prefix removed. GGUF says biases and tying by the tensors it has."""
        shapes = tensors.shapes
        heads = fields.count("attention.head_count")
        hidden = fields.count("embedding_length")
        head_dim = fields.count("attention.key_length", max(hidden // heads, 1))
        fields.require("attention.value_length", fields.get("attention.value_length", int, head_dim), head_dim)
        max_position = fields.count("context_length")
        embed = shapes.get(GGUF_NAMES["embed"])
        if embed is None:
            raise fields.error(GGUF_NAMES["embed"], "is missing")
        fields.raw("vocab_size")  # the embedding's rows say it; padding tokens make some files disagree
        return self.build(
            fields,
            dtype,
            vocab_size=embed[0],
            hidden_size=hidden,
            intermediate_size=fields.get("feed_forward_length", int),
            num_layers=fields.count("block_count", most=MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=fields.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_position=max_position,
            rms_norm_eps=fields.get("attention.layer_norm_rms_epsilon", float),
            rope=rope_from_gguf(fields, head_dim, max_position, tensors.rope_divisors),
            tie_word_embeddings=GGUF_NAMES["lm_head"] not in shapes,
            attention_bias=self.gguf_name("layers.0.q_bias") in shapes,
            output_bias=self.gguf_name("layers.0.o_bias") in shapes,
            mlp_bias=self.gguf_name("layers.0.gate_bias") in shapes,
            qk_norm=self.gguf_name("layers.0.q_norm") in shapes,
        )

    def common_hf(self, fields: Fields, dtype: Dtype, **switches: Any) -> DecoderConfig:
        """The fields every architecture spells alike. ``switches`` are DecoderConfig's, and win."""
        heads = fields.count("num_attention_heads")
        hidden = fields.count("hidden_size")
        act = fields.get("hidden_act", str, "silu")
        if act not in self.silu_names:
            raise fields.error("hidden_act", f"is {act!r}; supported is silu")
        max_position = fields.count("max_position_embeddings")
        known: dict[str, Any] = {
            "vocab_size": fields.get("vocab_size", int),
            "hidden_size": hidden,
            "intermediate_size": fields.get("intermediate_size", int),
            "num_layers": fields.count("num_hidden_layers", most=MAX_LAYERS),
            "num_heads": heads,
            "num_kv_heads": fields.count("num_key_value_heads", heads),
            "head_dim": fields.count("head_dim", max(hidden // heads, 1)),
            "max_position": max_position,
            "rms_norm_eps": fields.get("rms_norm_eps", float, 1e-6),
            "rope": rope_from_hf(fields, max_position),
            "tie_word_embeddings": fields.get("tie_word_embeddings", bool, False),
        }
        return self.build(fields, dtype, **{**known, **switches})

    def build(self, fields: Fields, dtype: Dtype, **values: Any) -> DecoderConfig:
        try:
            return DecoderConfig(architecture=self.name, dtype=dtype, **values)
        except ValidationError as e:
            problems = "; ".join(f"{'.'.join(map(str, x['loc']))} {x['msg']}".strip() for x in e.errors())
            raise fields.error("config", f"does not describe a decoder: {problems}") from e

    def hf_name(self, canonical: str) -> str:
        """The Hugging Face name of a canonical tensor."""
        return _renamed(canonical, HF_NAMES, "model.layers")

    def gguf_name(self, canonical: str) -> str:
        """The GGUF name of a canonical tensor."""
        return _renamed(canonical, GGUF_NAMES, "blk")


def _renamed(canonical: str, names: Mapping[str, str], layers: str) -> str:
    if not canonical.startswith("layers."):
        return names[canonical]
    _, layer, part = canonical.split(".")
    return f"{layers}.{layer}.{names[part]}"
