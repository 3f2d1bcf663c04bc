"""The decoder as a TensorRT network: one definition for ``tensorrt`` and ``tensorrt_rtx``, for every architecture.

Tensor names and shapes are in ``trtserve.executor.tensorrt_io``. Weights are in the engine's dtype; norms, rotary
embedding and logits are float32. Attention masks are explicit booleans, one true for each cache position a row sees:
``j <= lengths[b] + r``, and in a sliding-window layer also ``j > lengths[b] + r - window``. Nothing depends on how a
runtime aligns a causal mask with a padded cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from trtbuild.network.acceptance import add_acceptance
from trtbuild.network.graph import Graph
from trtbuild.network.trt_types import INetworkDefinition, ITensor, TensorRT
from trtserve.executor import tensorrt_io as io
from trtserve.model_config import DecoderConfig
from trtserve.rope import tables

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


#: From (graph, hidden, logits, token_ids, head_rows, num_rows) to the verdict: see ``acceptance.add_acceptance``.
Acceptance = Callable[[Graph, ITensor, ITensor, ITensor, ITensor, ITensor], ITensor]


@dataclass(frozen=True)
class NetworkShape:
    """What of a network is fixed when it is built, beside the model."""

    cache_positions: int
    """S of the caches, scratch included."""
    fold_groups: bool = True
    """Query heads that share a key head become rows of it, so keys are not repeated for each of them."""
    acceptance: Acceptance = add_acceptance
    """Native layers, or ``plugin_acceptance.add_plugin_acceptance``."""


def build_decoder(
    trt: TensorRT,
    network: INetworkDefinition,
    config: DecoderConfig,
    weights: Mapping[str, torch.Tensor],
    shape: NetworkShape,
) -> Graph:
    """Define the whole network in the empty ``network``.

    ``weights``: every tensor of ``config.tensor_shapes()`` by its canonical name, in any floating-point dtype. Returns
    the graph, which holds the constants' memory: keep it until the plan is built. Raises ValueError for weights that
    do not fit the config and NetworkError when TensorRT refuses a layer.
    """
    _check(config, weights)
    return _Decoder(Graph(trt, network), config, weights, shape).build()


def _check(config: DecoderConfig, weights: Mapping[str, torch.Tensor]) -> None:
    wanted = config.tensor_shapes()
    if missing := sorted(wanted.keys() - weights.keys()):
        raise ValueError(f"{config.architecture}: the weights lack {', '.join(missing)}")
    if unknown := sorted(weights.keys() - wanted.keys()):
        raise ValueError(f"{config.architecture}: no place in the network for {', '.join(unknown)}")
    for name, shape in wanted.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{config.architecture}: {name} is {list(weights[name].shape)}, wanted {list(shape)}")


class _Decoder:
    """Builds one network. B, R, L and P are the run-time sizes named in ``tensorrt_io``."""

    def __init__(
        self, g: Graph, config: DecoderConfig, weights: Mapping[str, torch.Tensor], shape: NetworkShape
    ) -> None:
        self.g = g
        self.config = config
        self.weights = weights
        self.shape = shape
        self.dtype = TORCH_DTYPES[config.dtype]
        self.folds = shape.fold_groups and config.num_heads > config.num_kv_heads

    def build(self) -> Graph:
        g, config = self.g, self.config
        self.token_ids = g.input(io.TOKEN_IDS, torch.int32, (-1, -1))
        self.lengths = g.input(io.LENGTHS, torch.int32, (-1,))
        num_rows = g.input(io.NUM_ROWS, torch.int32, (-1,))
        head_rows = g.input(io.HEAD_ROWS, torch.int32, (-1,))
        logit_rows = g.input(io.LOGIT_ROWS, torch.int32, (-1,))
        cache_shape = (-1, config.num_kv_heads, self.shape.cache_positions, config.head_dim)
        self.caches = [
            {kind: g.input(io.cache_input(kind, i), self.dtype, cache_shape) for kind in "kv"}
            for i in range(config.num_layers)
        ]

        rows = g.arange(g.size(self.token_ids, 1))
        self.positions = g.add(g.reshape(self.lengths, (-1, 1)), g.reshape(rows, (1, -1)))  # [B, R]
        cos, sin = tables(config.rope, config.head_dim, self.shape.cache_positions)
        self.cos, self.sin = g.constant(torch.from_numpy(cos)), g.constant(torch.from_numpy(sin))
        windows = dict.fromkeys(config.sliding_window(i) for i in range(config.num_layers))
        self.masks = {window: self._mask(window) for window in windows}

        x = g.take(self._weight("embed"), self.token_ids, 0)  # [B, R, H]
        for i in range(config.num_layers):
            p = f"layers.{i}."
            x = g.add(x, self._attention(i, self._norm(x, p + "attn_norm", rank=3)))
            x = g.add(x, self._mlp(p, self._norm(x, p + "mlp_norm", rank=3)))
        x = self._norm(g.take(x, head_rows, 1), "final_norm", rank=3)  # [B, L, H]
        head = "embed" if config.tie_word_embeddings else "lm_head"
        logits = g.cast(g.matmul_transposed(x, self._weight(head, rank=3)), torch.float32)  # [B, L, V]

        verdict = self.shape.acceptance(g, x, logits, self.token_ids, head_rows, num_rows)
        g.output(verdict, io.VERDICT, torch.int32)
        g.output(g.take(logits, logit_rows, 1), io.LOGITS, torch.float32)
        return g

    def _weight(self, name: str, rank: int | None = None) -> ITensor:
        """A weight in the engine's dtype, behind dimensions of 1 up to ``rank``."""
        value = self.weights[name].to(self.dtype)
        padding = 0 if rank is None else rank - value.dim()
        return self.g.constant(value, (1,) * padding + tuple(value.shape))

    def _linear(self, x: ITensor, name: str, bias: bool) -> ITensor:
        """``x [B, R, in]`` through the weight ``name``: ``[B, R, out]``."""
        y = self.g.matmul_transposed(x, self._weight(name, rank=3))
        return self.g.add(y, self._weight(name + "_bias", rank=3)) if bias else y

    def _norm(self, x: ITensor, name: str, rank: int) -> ITensor:
        """RMSNorm over the last axis, in float32, then the weight in the engine's dtype. TensorRT has no such layer."""
        g = self.g
        wide = g.cast(x, torch.float32)
        mean_square = g.mean(g.mul(wide, wide), axis=rank - 1)
        root = g.sqrt(g.add(mean_square, g.float32(self.config.rms_norm_eps, rank)))
        return g.mul(g.cast(g.div(wide, root), self.dtype), self._weight(name, rank=rank))

    def _mask(self, window: int | None) -> ITensor:
        """True where a row attends: bool ``[B, 1, R, S]``, repeated for each head of a group when groups are folded."""
        g = self.g
        column = g.constant(torch.arange(self.shape.cache_positions, dtype=torch.int32).reshape(1, 1, 1, -1))
        row = g.reshape(self.positions, (0, 1, -1, 1))  # [B, 1, R, 1]
        if self.folds:
            # Repeating positions and not the mask: a concatenation of masks does not build for a batch fixed at 1.
            row = g.concat([row] * (self.config.num_heads // self.config.num_kv_heads), axis=2)
        sees = g.negate(g.greater(column, row))
        if window is not None:
            sees = g.both(sees, g.greater(column, g.sub(row, g.int32(window, rank=4))))
        return sees

    def _heads(self, x: ITensor, name: str, heads: int) -> ITensor:
        """``[B, R, heads * D]`` to ``[B, heads, R, D]``, normalized when the architecture does that, and rotated.

        Returns float32: the rotation's tables are, and the caller casts once, after scaling.
        """
        g, config = self.g, self.config
        x = g.reshape(x, (0, 0, heads, config.head_dim))
        if config.qk_norm:
            x = self._norm(x, name, rank=4)
        x = g.reshape(x, (0, 0, 0, 0), before=(0, 2, 1, 3))
        return g.rotate(g.cast(x, torch.float32), self.cos, self.sin, self.positions)

    def _attention(self, layer: int, x: ITensor) -> ITensor:
        g, config = self.g, self.config
        p, d = f"layers.{layer}.", config.head_dim
        q, k, v = (self._linear(x, p + name, config.attention_bias) for name in "qkv")
        q = self._heads(q, p + "q_norm", config.num_heads)
        q = g.cast(g.mul(q, g.float32(d**-0.5, rank=4)), self.dtype)
        update = {
            "k": g.cast(self._heads(k, p + "k_norm", config.num_kv_heads), self.dtype),
            "v": g.reshape(v, (0, 0, config.num_kv_heads, d), after=(0, 2, 1, 3)),
        }
        cache = {}
        for kind in "kv":
            cache[kind] = g.update_cache(self.caches[layer][kind], update[kind], self.lengths)
            g.output(cache[kind], io.cache_output(kind, layer), self.dtype)
        if self.folds:
            q = g.reshape(q, (0, config.num_kv_heads, -1, d))  # a group's heads follow each other, so rows do too
        out = g.attend(q, cache["k"], cache["v"], self.masks[config.sliding_window(layer)])
        out = g.reshape(out, (0, config.num_heads, -1, d), after=(0, 2, 1, 3))  # [B, R, heads, D]
        return self._linear(g.reshape(out, (0, 0, config.q_size)), p + "o", config.output_bias)

    def _mlp(self, p: str, x: ITensor) -> ITensor:
        bias = self.config.mlp_bias
        gate = self.g.silu(self._linear(x, p + "gate", bias))
        return self._linear(self.g.mul(gate, self._linear(x, p + "up", bias)), p + "down", bias)
