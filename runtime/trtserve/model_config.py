"""The decoder's shape, as data: what every target needs to know to run a checkpoint.

One description serves every architecture this project reads (Llama, Mistral, Qwen2, Qwen3): they differ in a handful
of switches, which are fields here. A reader in ``trtbuild.checkpoint.architectures`` translates a checkpoint's own
config into this; an executor or network builder reads nothing else.

Tensor names (the *canonical* names every reader produces and every target consumes), all in the checkpoint's
floating-point type, ``[out, in]`` like ``torch.nn.Linear.weight``:

=====================================  =======================================================================
``embed``                              ``[vocab_size, hidden_size]``
``layers.{i}.attn_norm``               ``[hidden_size]``: RMSNorm before attention
``layers.{i}.q`` ``.k`` ``.v``         ``[num_heads | num_kv_heads * head_dim, hidden_size]``
``layers.{i}.q_bias`` ``.k_bias`` ...  ``[out]``, present when ``attention_bias``
``layers.{i}.q_norm`` ``.k_norm``      ``[head_dim]``, present when ``qk_norm``: RMSNorm of each head before RoPE
``layers.{i}.o``                       ``[hidden_size, num_heads * head_dim]``
``layers.{i}.o_bias``                  ``[hidden_size]``, present when ``output_bias``
``layers.{i}.mlp_norm``                ``[hidden_size]``: RMSNorm before the MLP
``layers.{i}.gate`` ``.up``            ``[intermediate_size, hidden_size]``
``layers.{i}.down``                    ``[hidden_size, intermediate_size]``
``layers.{i}.gate_bias`` ...           ``[out]`` for gate, up and down, present when ``mlp_bias``
``final_norm``                         ``[hidden_size]``
``lm_head``                            ``[vocab_size, hidden_size]``, absent when ``tie_word_embeddings``
=====================================  =======================================================================

Query and key rows are in the *rotate-half* order: dimension ``d`` of a head turns with ``d + head_dim / 2``. A reader
of a format that stores the interleaved order (GGUF's llama files) permutes them back.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Dtype = Literal["float32", "float16", "bfloat16"]


class RopeConfig(BaseModel):
    """Rotary position embedding. ``kind`` chooses which of the optional fields count.

    ``linear`` divides positions by ``factor``; ``llama3`` scales low frequencies only (Llama 3.1's rule); ``yarn``
    interpolates by frequency and scales the attention temperature (arXiv 2309.00071).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    theta: float = Field(default=10000.0, gt=0)
    factor: float = Field(default=1.0, gt=0)
    original_max_position: int | None = Field(default=None, gt=0)
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class DecoderConfig(BaseModel):
    """A decoder-only transformer: pre-norm RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: str
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    max_position: int = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)
    rope: RopeConfig = RopeConfig()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_windows: tuple[int | None, ...] = ()
    """Per layer: how many last positions (itself included) a row attends to, or None for all. Empty: None for all."""
    dtype: Dtype = "float32"
    """How weights are stored in the engine. On a CPU the arithmetic is float32 whatever the storage."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> DecoderConfig:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; RoPE turns pairs of dimensions")
        if self.sliding_windows and len(self.sliding_windows) != self.num_layers:
            raise ValueError(f"sliding_windows has {len(self.sliding_windows)} entries for {self.num_layers} layers")
        return self

    def sliding_window(self, layer: int) -> int | None:
        """The window of ``layer`` in tokens, or None when it attends to everything before it."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every canonical tensor this config needs, with its shape: what a reader must deliver, no more and no less."""
        h, f = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, h)}
        for i in range(self.num_layers):
            p = f"layers.{i}."
            shapes[p + "attn_norm"] = (h,)
            for name, size in (("q", self.q_size), ("k", self.kv_size), ("v", self.kv_size)):
                shapes[p + name] = (size, h)
                if self.attention_bias:
                    shapes[p + name + "_bias"] = (size,)
            if self.qk_norm:
                shapes[p + "q_norm"] = shapes[p + "k_norm"] = (self.head_dim,)
            shapes[p + "o"] = (h, self.q_size)
            if self.output_bias:
                shapes[p + "o_bias"] = (h,)
            shapes[p + "mlp_norm"] = (h,)
            for name, out, into in (("gate", f, h), ("up", f, h), ("down", h, f)):
                shapes[p + name] = (out, into)
                if self.mlp_bias:
                    shapes[p + name + "_bias"] = (out,)
        shapes["final_norm"] = (h,)
        if not self.tie_word_embeddings:
            shapes["lm_head"] = (self.vocab_size, h)
        return shapes
