"""The decoder in native code: what runs it on a CPU.

Every output is one sum in one fixed order, so a row's logits are the same bits for any number of rows, any batch, any
prefill chunking and any thread count (``csrc/kernels.h``). Between instruction sets bits may differ.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtserve import rope
from trtserve.executor import _cpu
from trtserve.executor.base import ExecutorError
from trtserve.executor.decoder import Decoder, NamedTensors, Rows
from trtserve.host_memory import available_memory
from trtserve.model_config import DecoderConfig

#: Environment variable that forces an instruction set: ``generic``, ``avx2`` or ``avx512``; read when a model loads.
LEVEL_VARIABLE = "TRTLOOKUP_CPU_LEVEL"


class NativeDecoder(Decoder):
    """``config`` on the CPU, its weights stored as ``config.dtype``, arithmetic and K/V in float32."""

    exact = True

    def __init__(
        self,
        config: DecoderConfig,
        tensors: NamedTensors,
        *,
        slots: int,
        positions: int,
        max_rows: int,
        threads: int,
        level: str | None = None,
    ) -> None:
        """``level``: the instruction set; None takes LEVEL_VARIABLE's, or else the best this machine has.

        Raises ExecutorError when the level does not exist here or the memory does not suffice.
        """
        level = level or os.environ.get(LEVEL_VARIABLE) or _cpu.levels()[-1]
        if level not in _cpu.levels():
            raise ExecutorError(
                f"{LEVEL_VARIABLE} is {level!r}; this build has on this machine: {', '.join(_cpu.levels())}"
            )
        _check_memory(config, slots, positions)
        cos, sin = rope.tables(config.rope, config.head_dim, positions)
        try:
            self.native = _cpu.Decoder(
                num_layers=config.num_layers,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                vocab_size=config.vocab_size,
                rms_norm_eps=config.rms_norm_eps,
                tied=config.tie_word_embeddings,
                attention_bias=config.attention_bias,
                output_bias=config.output_bias,
                mlp_bias=config.mlp_bias,
                qk_norm=config.qk_norm,
                windows=[config.sliding_window(layer) or 0 for layer in range(config.num_layers)],
                dtype=config.dtype,
                slots=slots,
                positions=positions,
                max_rows=max_rows,
                threads=threads,
                level=level,
                cos=cos,
                sin=sin,
            )
        except MemoryError as e:
            raise ExecutorError(f"no memory for the model's {_needed(config, slots, positions)}") from e
        for name, tensor in tensors:
            self.native.load(name, _bits(tensor, config.dtype if self.native.is_matrix(name) else "float32"))
        if missing := self.native.missing():
            raise ExecutorError(f"the weights lack {', '.join(missing)}")

    def forward(self, rows: Rows, out: NDArray[np.float32]) -> None:
        self.native.forward(rows.tokens, rows.slots, rows.lengths, rows.num_rows, rows.logit_rows, out)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.native.copy_prefix(source, target, length)


def _bits(tensor: Tensor, dtype: str) -> NDArray[np.generic]:
    """The tensor in ``dtype``; 16-bit floats as the integers NumPy can hold."""
    tensor = tensor.detach().cpu().to(getattr(torch, dtype)).contiguous()
    array: NDArray[np.generic] = tensor.numpy() if dtype == "float32" else tensor.view(torch.int16).numpy()
    return array if dtype == "float32" else array.view(np.uint16)


def _bytes(config: DecoderConfig, slots: int, positions: int) -> tuple[int, int]:
    """Bytes of the weights and of the KV cache."""
    item = 4 if config.dtype == "float32" else 2
    weights = item * sum(int(np.prod(shape)) for shape in config.tensor_shapes().values())
    return weights, 2 * 4 * config.num_layers * slots * config.kv_size * positions


def _needed(config: DecoderConfig, slots: int, positions: int) -> str:
    weights, cache = _bytes(config, slots, positions)
    mib = 1 << 20
    return (
        f"{weights // mib} MiB of weights and {cache // mib} MiB of KV cache ({slots} slots of {positions} positions)"
    )


def _check_memory(config: DecoderConfig, slots: int, positions: int) -> None:
    available = available_memory()
    # Where the system does not say, the allocation itself decides.
    if available is not None and sum(_bytes(config, slots, positions)) > available:
        raise ExecutorError(
            f"the engine needs {_needed(config, slots, positions)}; {available >> 20} MiB are available. "
            "Build it with a smaller max_batch_size or max_seq_len."
        )
