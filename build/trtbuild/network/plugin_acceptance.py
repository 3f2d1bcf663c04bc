"""Greedy acceptance as the kernels' TensorRT plugins, in the place of native layers: full TensorRT alone."""

from __future__ import annotations

import importlib

import torch

from trtbuild.network.graph import Graph
from trtbuild.network.trt_types import ITensor
from trtplugins.tensorrt_plugin import add_acceptance, register_plugins


def add_plugin_acceptance(
    g: Graph, hidden: ITensor, logits: ITensor, token_ids: ITensor, head_rows: ITensor, num_rows: ITensor
) -> ITensor:
    """The same verdict as ``acceptance.add_acceptance``, from the same tensors; the plugins look for NaN themselves."""
    trtp = importlib.import_module(f"{g.trt.__name__}.plugin")
    register_plugins(g.trt, trtp)
    tokens = g.take(token_ids, head_rows, 1)  # [B, L]
    # A prefill's one head row has no drafts, however many rows it came with.
    rows = g.minimum(num_rows, g.cast(g.size(head_rows, 0), torch.int32))
    made = add_acceptance(g.network, trtp, logits, tokens, rows)
    next_token = g.reshape(made.next, (-1, 1))
    failed = g.cast(g.less(next_token, g.int32(0, rank=2)), torch.int32)
    return g.concat((g.reshape(made.accepted, (-1, 1)), next_token, failed), 1)
