"""GGUF files: metadata, tensors of every quantisation the gguf package can dequantise, and the tokenizer inside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from trtbuild.checkpoint import architectures
from trtbuild.checkpoint.architectures.base import GgufTensors
from trtbuild.checkpoint.base import Checkpoint, CheckpointError, check_tensors
from trtbuild.checkpoint.fields import Fields
from trtbuild.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from trtserve.engine_dir import TokenizerRecord
from trtserve.model_config import DecoderConfig, Dtype

if TYPE_CHECKING:
    import gguf

ROPE_DIVISORS = "rope_freqs.weight"


class GgufCheckpoint(Checkpoint):
    """One GGUF file. Quantised tensors come out as the float32 values they stand for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self._stored = {tensor.name: tensor for tensor in self._reader.tensors}
        self._architecture = architectures.find_gguf(str(self._meta.get("general.architecture")), str(path))
        if (parts := self._meta.get("split.count", 0)) > 1:
            raise CheckpointError(f"{path}: is one of {parts} parts; merge them with gguf-split --merge first")

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def config(self, dtype: Dtype) -> DecoderConfig:
        prefix = f"{self._meta['general.architecture']}."
        values = {key[len(prefix) :]: value for key, value in self._meta.items() if key.startswith(prefix)}
        fields = Fields(values, f"{self.path}: {prefix[:-1]}")
        config = self._architecture.from_gguf(fields, GgufTensors(self._shapes, self._rope_divisors), dtype)
        # Everything under the architecture's own prefix is about the forward pass; zero is GGUF's way to say "none".
        for name, value in fields.unread().items():
            if value != 0:
                raise fields.error(name, f"is {value!r}; this field is not understood and may change the model")
        return config

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        config = self.config("float32")
        names = {canonical: self._architecture.gguf_name(canonical) for canonical in config.tensor_shapes()}
        check_tensors(str(self.path), names, config, self._shapes)
        for canonical, name in names.items():
            values = self._dequantised(name)
            if self._architecture.gguf_interleaved:
                part = canonical.rpartition(".")[2]
                if part in ("q", "q_bias"):
                    values = _rotate_half_order(values, config.num_heads)
                elif part in ("k", "k_bias"):
                    values = _rotate_half_order(values, config.num_kv_heads)
            yield canonical, torch.from_numpy(values)

    def save_tokenizer(self, directory: Path) -> TokenizerRecord:
        rows = self.config("float32").vocab_size
        return tokenizer_from_gguf(self._meta, str(self.path)).save(directory, rows)

    def describe(self) -> dict[str, Any]:
        kinds: dict[str, int] = {}
        for tensor in self._reader.tensors:
            kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
        return {
            "format": "gguf",
            "architecture": self._architecture.name,
            "source": str(self.path),
            "name": self._meta.get("general.name"),
            "license": self._meta.get("general.license"),
            "tensor_types": kinds,
        }

    @cached_property
    def _meta(self) -> dict[str, Any]:
        return {key: field.contents() for key, field in self._reader.fields.items()}

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        # GGUF writes dimensions fastest first.
        return {
            name: tuple(int(n) for n in reversed(tensor.shape.tolist()))
            for name, tensor in self._stored.items()
            if name != ROPE_DIVISORS
        }

    @cached_property
    def _rope_divisors(self) -> NDArray[np.float32] | None:
        return self._dequantised(ROPE_DIVISORS) if ROPE_DIVISORS in self._stored else None

    def _dequantised(self, name: str) -> NDArray[np.float32]:
        """A tensor as float32, in memory of its own."""
        import gguf

        tensor = self._stored[name]
        try:
            if tensor.tensor_type == gguf.GGMLQuantizationType.F64:
                return np.array(tensor.data, dtype=np.float32)
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as e:
            raise CheckpointError(f"{self.path}: {name}: cannot dequantise {tensor.tensor_type.name}: {e}") from e
        return np.array(values, dtype=np.float32, copy=not values.flags.writeable)


def _open(path: Path) -> gguf.GGUFReader:
    try:
        import gguf
    except ImportError as e:
        raise CheckpointError(f"{path}: reading GGUF needs the package gguf: pip install 'trtlookup[build]'") from e
    with path.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise CheckpointError(f"{path}: is not a GGUF file (it does not start with 'GGUF')")
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as e:
        raise CheckpointError(f"{path}: is truncated or not valid GGUF: {e}") from e


def _rotate_half_order(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows 0, 1, 2, ... of a head go from (first half, second half) interleaved to first half, then second half."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
