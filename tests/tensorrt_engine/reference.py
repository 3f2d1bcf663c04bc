"""An independent decoder for comparison: plain torch, float32, the whole sequence at once, no cache and no batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trtserve.model_config import DecoderConfig
from trtserve.rope import tables


def reference_logits(
    config: DecoderConfig, weights: Mapping[str, torch.Tensor], tokens: Sequence[int]
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Logits ``[n, V]`` after each token, and each layer's rotated keys and values ``[heads, n, D]``."""
    w = {name: value.float() for name, value in weights.items()}
    n, d = len(tokens), config.head_dim
    cos, sin = (torch.from_numpy(t) for t in tables(config.rope, d, n))
    position = torch.arange(n)
    x = w["embed"][torch.tensor(tokens)]
    keys, values = [], []

    def norm(y: torch.Tensor, name: str) -> torch.Tensor:
        return y / (y.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * w[name]

    def linear(y: torch.Tensor, name: str) -> torch.Tensor:
        return y @ w[name].T + w.get(name + "_bias", torch.zeros(()))

    def heads(y: torch.Tensor, count: int) -> torch.Tensor:
        return y.reshape(n, count, d).transpose(0, 1)

    def rotate(y: torch.Tensor) -> torch.Tensor:
        a, b = y[..., : d // 2], y[..., d // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    for i in range(config.num_layers):
        p = f"layers.{i}."
        y = norm(x, p + "attn_norm")
        q, k, v = (
            heads(linear(y, p + name), count)
            for name, count in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads))
        )
        if config.qk_norm:
            q, k = norm(q, p + "q_norm"), norm(k, p + "k_norm")
        q, k = rotate(q), rotate(k)
        keys.append(k)
        values.append(v)
        group = config.num_heads // config.num_kv_heads
        scores = q @ k.repeat_interleave(group, 0).transpose(-1, -2) / d**0.5
        sees = position[None, :] <= position[:, None]
        if (window := config.sliding_window(i)) is not None:
            sees &= position[None, :] > position[:, None] - window
        out = scores.masked_fill(~sees, float("-inf")).softmax(-1) @ v.repeat_interleave(group, 0)
        x = x + linear(out.transpose(0, 1).reshape(n, -1), p + "o")
        y = norm(x, p + "mlp_norm")
        gate = linear(y, p + "gate")
        x = x + linear(gate * torch.sigmoid(gate) * linear(y, p + "up"), p + "down")
    head = "embed" if config.tie_word_embeddings else "lm_head"
    return norm(x, "final_norm") @ w[head].T, keys, values
