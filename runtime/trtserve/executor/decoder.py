"""The decoder in plain torch operators: the model, to be read, and what runs it on a CUDA device.

On a CPU ``trtserve.executor.native`` computes the same function faster, and bit for bit the same whatever else is in
the batch; this module is what its results are compared with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, silu

from trtserve import rope
from trtserve.model_config import DecoderConfig

#: Canonical names and tensors, each delivered once; a reader may load them one by one.
NamedTensors = Iterable[tuple[str, Tensor]]


class Rows(NamedTuple):
    """What one forward computes: B sequences in distinct slots, their rows packed one sequence after the other."""

    tokens: NDArray[np.int32]  # [T], T = sum(num_rows)
    slots: NDArray[np.int32]  # [B]
    lengths: NDArray[np.int32]  # [B] row i of sequence b is at position lengths[b] + i
    num_rows: NDArray[np.int32]  # [B]
    logit_rows: NDArray[np.int32]  # [n] the packed rows whose logits are wanted; none of them: only K/V are


class Decoder(ABC):
    """A model and its KV cache."""

    exact: bool
    """Whether a row's bits depend on its own sequence alone."""

    @abstractmethod
    def forward(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Write K/V of every row at its position and the logits of ``logit_rows`` to ``out``, ``[n, vocab_size]``.

        Raises ValueError for slots, lengths or tokens outside what the decoder was made for.
        """

    @abstractmethod
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the K/V of the first ``length`` positions of slot ``source`` to slot ``target``."""


class TorchDecoder(Decoder):
    """The decoder on any torch device. Weights, cache and arithmetic are ``config.dtype``; on a CPU, float32."""

    exact = False

    def __init__(
        self, config: DecoderConfig, tensors: NamedTensors, *, slots: int, positions: int, device: str
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.dtype = torch.float32 if self.device.type == "cpu" else getattr(torch, config.dtype)
        self.weights = {name: tensor.to(self.device, self.dtype) for name, tensor in tensors}
        cache = (config.num_layers, slots, config.num_kv_heads, positions, config.head_dim)
        self.keys = torch.zeros(cache, dtype=self.dtype, device=self.device)
        self.values = torch.zeros(cache, dtype=self.dtype, device=self.device)
        self.cos, self.sin = (
            torch.from_numpy(table).to(self.device) for table in rope.tables(config.rope, config.head_dim, positions)
        )

    @torch.inference_mode()
    def forward(self, rows: Rows, out: NDArray[np.float32]) -> None:
        w, at = self.weights, _Placement(rows, self.device)
        x = w["embed"][torch.from_numpy(rows.tokens).to(self.device).long()]  # [T, hidden]
        for layer in range(self.config.num_layers):
            p = f"layers.{layer}."
            x = x + self._attention(layer, self._norm(x, w[p + "attn_norm"]), at)
            h = self._norm(x, w[p + "mlp_norm"])
            x = x + self._linear(p + "down", silu(self._linear(p + "gate", h)) * self._linear(p + "up", h))
        if len(rows.logit_rows):
            x = self._norm(x[torch.from_numpy(rows.logit_rows).to(self.device).long()], w["final_norm"])
            logits = linear(x, w["embed" if self.config.tie_word_embeddings else "lm_head"])
            out[:] = logits.float().cpu().numpy()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for cache in (self.keys, self.values):
            cache[:, target, :, :length] = cache[:, source, :, :length]

    def _attention(self, layer: int, h: Tensor, at: _Placement) -> Tensor:
        c, p, rows = self.config, f"layers.{layer}.", len(h)
        q = self._linear(p + "q", h).view(rows, c.num_heads, c.head_dim)
        k = self._linear(p + "k", h).view(rows, c.num_kv_heads, c.head_dim)
        v = self._linear(p + "v", h).view(rows, c.num_kv_heads, c.head_dim)
        if c.qk_norm:
            q, k = self._norm(q, self.weights[p + "q_norm"]), self._norm(k, self.weights[p + "k_norm"])
        q, k = self._rope(q, at.position), self._rope(k, at.position)
        self.keys[layer, at.slot, :, at.position] = k
        self.values[layer, at.slot, :, at.position] = v

        # Queries as [B, kv_head, group, row, head_dim], the last rows of shorter sequences padded with zeros.
        group = c.num_heads // c.num_kv_heads
        padded = q.new_zeros(len(at.slots), at.most_rows, c.num_heads, c.head_dim)
        padded[at.sequence, at.row] = q
        padded = padded.view(len(at.slots), at.most_rows, c.num_kv_heads, group, c.head_dim).permute(0, 2, 3, 1, 4)
        keys = self.keys[layer, at.slots, :, None, : at.longest]  # [B, kv_head, 1, longest, head_dim]
        values = self.values[layer, at.slots, :, None, : at.longest]
        # A masked key has weight 0, but what an earlier sequence left in the slot may be NaN, and 0 * NaN is NaN.
        values = values.masked_fill(~at.held[:, None, None, :, None], 0)
        scores = padded @ keys.transpose(-1, -2) * c.head_dim**-0.5
        visible = at.visible(c.sliding_window(layer))[:, None, None]  # [B, 1, 1, row, longest]
        weights = scores.float().masked_fill(~visible, -torch.inf).softmax(-1).to(self.dtype)
        attended = (weights @ values).permute(0, 3, 1, 2, 4)  # [B, row, kv_head, group, head_dim]
        return self._linear(p + "o", attended[at.sequence, at.row].reshape(rows, c.q_size))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[name], self.weights.get(name + "_bias"))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)).to(
            x.dtype
        ) * weight

    def _rope(self, x: Tensor, position: Tensor) -> Tensor:
        """Rotate-half: x is ``[T, heads, head_dim]``."""
        cos, sin = self.cos[position][:, None], self.sin[position][:, None]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class _Placement:
    """Where each row of a forward belongs, as index tensors on the device."""

    def __init__(self, rows: Rows, device: torch.device) -> None:
        lengths, num_rows = torch.from_numpy(rows.lengths).long(), torch.from_numpy(rows.num_rows).long()
        self.most_rows = int(num_rows.max())
        self.longest = int((lengths + num_rows).max())
        self.slots = torch.from_numpy(rows.slots).long().to(device)  # [B]
        self.sequence = torch.repeat_interleave(num_rows).to(device)  # [T]
        starts = (num_rows.cumsum(0) - num_rows).to(device)
        self.row = torch.arange(int(num_rows.sum()), device=device) - starts[self.sequence]  # [T] within its sequence
        self.slot = self.slots[self.sequence]  # [T]
        self.position = lengths.to(device)[self.sequence] + self.row  # [T]
        self._position = lengths.to(device)[:, None] + torch.arange(self.most_rows, device=device)  # [B, most_rows]
        self._keys = torch.arange(self.longest, device=device)
        self.held = self._keys < (lengths + num_rows).to(device)[:, None]  # [B, longest] written by this sequence

    def visible(self, window: int | None) -> Tensor:
        """Bool ``[B, most_rows, longest]``: which positions a row attends to."""
        age = self._position[:, :, None] - self._keys
        return (age >= 0) if window is None else (age >= 0) & (age < window)
