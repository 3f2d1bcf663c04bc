"""Where keys and values are: one allocation, cut by layer and kind, then slot, head and position."""

from __future__ import annotations

from collections.abc import Iterator

from trtserve.model_config import DecoderConfig


class CacheLayout:
    """Byte offsets in the KV cache ``[layers, 2, slots, heads, positions, head_dim]`` of the engine's dtype.

    A binding covers neighbouring slots of one layer's keys or values, from any slot on; ``positions`` is a multiple
    of 64, so every slot starts at a multiple of 256 bytes.
    """

    def __init__(self, config: DecoderConfig, slots: int, positions: int) -> None:
        self.layers = config.num_layers
        self.slots = slots
        self.heads = config.num_kv_heads
        self.positions = positions
        self.head_dim = config.head_dim
        self.position_bytes = config.head_dim * (4 if config.dtype == "float32" else 2)
        self.head_bytes = positions * self.position_bytes
        self.slot_bytes = self.heads * self.head_bytes
        self._part_bytes = slots * self.slot_bytes
        self.nbytes = 2 * self.layers * self._part_bytes

    def part(self, kind: str, layer: int) -> int:
        """Where slot 0 of a layer's keys (``k``) or values (``v``) begins."""
        return (2 * layer + (kind == "v")) * self._part_bytes

    def parts(self) -> Iterator[int]:
        """Where each layer's keys and values begin."""
        for layer in range(self.layers):
            yield self.part("k", layer)
            yield self.part("v", layer)
