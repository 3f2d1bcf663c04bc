"""Native CPU kernels: see ``csrc/decoder.h`` and ``csrc/kernels.h``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def levels() -> list[str]:
    """Instruction sets this build and this machine have, slowest first: generic, avx2, avx512."""

class Decoder:
    """Packed weights, a float32 KV cache of ``slots`` x ``positions``, and threads.

    Raises ValueError for bad arguments, MemoryError when the address space does not suffice. One thread at a time may
    call it; calls release the GIL.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab_size: int,
        rms_norm_eps: float,
        tied: bool,
        attention_bias: bool,
        output_bias: bool,
        mlp_bias: bool,
        qk_norm: bool,
        windows: Sequence[int],  # per layer, 0: every position
        dtype: str,
        slots: int,
        positions: int,
        max_rows: int,  # of one forward
        threads: int,  # the caller included
        level: str,  # one of levels()
        cos: NDArray[np.float32],  # [positions, head_dim / 2]
        sin: NDArray[np.float32],  # [positions, head_dim / 2]
    ) -> None: ...
    def load(self, name: str, data: NDArray[Any]) -> None:
        """Pack a canonical tensor: matrices as float32 or the uint16 bits of ``dtype``, norms and biases float32."""

    def missing(self) -> list[str]:
        """Tensors not loaded yet."""

    def is_matrix(self, name: str) -> bool:
        """Whether the tensor is stored in ``dtype``; norms and biases are float32. ValueError for an unknown name."""

    def forward(
        self,
        tokens: NDArray[np.int32],  # [T]
        slots: NDArray[np.int32],  # [B]
        lengths: NDArray[np.int32],  # [B]
        num_rows: NDArray[np.int32],  # [B]
        logit_rows: NDArray[np.int32],  # [n]
        out: NDArray[np.float32],  # [n, vocab_size]
    ) -> None:
        """One forward. ValueError for what does not fit, before anything is written."""

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    @property
    def level(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
