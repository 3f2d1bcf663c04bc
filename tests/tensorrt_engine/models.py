"""Tiny random models, one for each switch an architecture has, and networks built from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from trtbuild.network.decoder import NetworkShape, build_decoder
from trtbuild.network.graph import Graph
from trtbuild.network.interpreter import Interpreter
from trtserve.executor import tensorrt_io as io
from trtserve.model_config import DecoderConfig, RopeConfig

CACHE_POSITIONS = 64
VOCAB = 61

#: What the architectures differ in. Two layers, so that one layer's output is another's input.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "llama3_scaled": {
        "rope": RopeConfig(
            kind="llama3", theta=5e4, factor=8.0, original_max_position=16, low_freq_factor=1.0, high_freq_factor=4.0
        )
    },
    "yarn": {"rope": RopeConfig(kind="yarn", factor=4.0, original_max_position=16)},
    "mistral": {"sliding_windows": (7, 7)},
    "mixed_windows": {"sliding_windows": (None, 5)},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 16},
    "all_biases": {"attention_bias": True, "output_bias": True, "mlp_bias": True},
    "no_groups": {"num_kv_heads": 6},
    "one_key_head": {"num_kv_heads": 1},
}


def config_of(architecture: str, **changes: Any) -> DecoderConfig:
    fields: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_position": 128,
        "rms_norm_eps": 1e-5,
    }
    return DecoderConfig(**{**fields, **ARCHITECTURES.get(architecture, {}), **changes})


def random_weights(config: DecoderConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights that make every part matter: norms away from 1, biases away from 0, sharp attention."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        value = torch.randn(shape, generator=generator)
        if name.endswith("norm"):
            weights[name] = 1 + 0.3 * value
        elif len(shape) == 1:
            weights[name] = 0.3 * value
        else:
            scale = 3.0 if name.endswith((".q", ".k")) else 1.0
            weights[name] = value * scale / shape[1] ** 0.5
    return weights


class Network(NamedTuple):
    config: DecoderConfig
    weights: dict[str, torch.Tensor]
    definition: Any
    graph: Graph
    kept: tuple[Any, ...]


def build(trt: Any, config: DecoderConfig, weights: dict[str, torch.Tensor] | None = None, **shape: Any) -> Network:
    """The real INetworkDefinition of a model, in the installed TensorRT-RTX."""
    weights = random_weights(config) if weights is None else weights
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    definition = builder.create_network(0)
    graph = build_decoder(trt, definition, config, weights, NetworkShape(CACHE_POSITIONS, **shape))
    return Network(config, weights, definition, graph, (logger, builder))


class Runner:
    """Evaluates a network over caches of ``slots`` slots, as an engine would be called."""

    def __init__(self, trt: Any, network: Network, slots: int) -> None:
        self.config = network.config
        self.interpreter = Interpreter(trt, network.definition, network.graph.constants)
        shape = (slots, self.config.num_kv_heads, CACHE_POSITIONS, self.config.head_dim)
        self.caches = {
            name: torch.zeros(shape, dtype=dtype)
            for name, dtype in self.interpreter.input_dtypes.items()
            if "_cache_" in name
        }

    def run(
        self,
        tokens: list[list[int]],
        lengths: list[int],
        num_rows: list[int] | None = None,
        head_rows: list[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Verdict ``[B, 3]`` and logits ``[B, L, V]`` of padded rows, all slots taking part in order."""
        rows = len(tokens[0])
        head_rows = list(range(rows)) if head_rows is None else head_rows
        inputs = {
            io.TOKEN_IDS: tokens,
            io.LENGTHS: lengths,
            io.NUM_ROWS: [rows] * len(tokens) if num_rows is None else num_rows,
            io.HEAD_ROWS: head_rows,
            io.LOGIT_ROWS: list(range(len(head_rows))),
        }
        out = self.interpreter.run(
            {**{name: torch.tensor(value, dtype=torch.int32) for name, value in inputs.items()}, **self.caches}
        )
        return out[io.VERDICT], out[io.LOGITS]
