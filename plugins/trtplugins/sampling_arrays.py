"""What the sampling kernels read of each sequence, as arrays: the boundary between a runtime and the kernels.

Addresses are plain integers so that one layout serves host and device: they point to host memory for the host build
and to device memory for a launch. 0 means absent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: ``counts`` bit that marks a token of the prompt; the bits below it count its occurrences in the output.
PROMPT_BIT = 1 << 30


class SamplingArrays(NamedTuple):
    """One entry per sequence. Order of processing per row: counts (penalties), bias, bans, mask, then temperature,
    top-k, top-p, min-p.

    Row i of a sequence sees the history plus the drafts before row i: a draft token d counts as output for the rows
    after it.
    """

    temperature: NDArray[np.float32]  # [B] 0 is greedy
    top_k: NDArray[np.int32]  # [B] 0 keeps all
    top_p: NDArray[np.float32]  # [B] 1 keeps all
    min_p: NDArray[np.float32]  # [B] 0 keeps all
    seed: NDArray[np.uint64]  # [B]
    position: NDArray[np.int64]  # [B] position of the token row 0 chooses; row i draws with position + i
    repetition_penalty: NDArray[
        np.float32
    ]  # [B] 1 is off; tokens of prompt and output; divides logits > 0, multiplies others
    presence_penalty: NDArray[np.float32]  # [B] subtracted once for tokens in the output
    frequency_penalty: NDArray[np.float32]  # [B] subtracted per occurrence in the output
    counts: NDArray[np.uint64]  # [B] address of int32[V], or 0: no penalties
    bias_tokens: NDArray[np.uint64]  # [B] address of int32[num_bias]
    bias_values: NDArray[np.uint64]  # [B] address of float32[num_bias]; -inf bans
    num_bias: NDArray[np.int32]  # [B]
    ban_tokens: NDArray[np.uint64]  # [B] address of int32[num_ban]
    num_ban: NDArray[np.int32]  # [B]
    ban_rows: NDArray[np.int32]  # [B] rows, from row 0, in which ban_tokens are banned
    mask: NDArray[np.uint64]  # [B] address of uint32[num_rows, ceil(V / 32)], bit t of word t // 32 set: allowed; or 0


#: One sequence's entry as the kernels read it: ``struct Sampling`` of ``csrc/rows.cuh``.
SAMPLING_DTYPE = np.dtype(
    [
        ("seed", "<u8"),
        ("position", "<i8"),
        ("counts", "<u8"),
        ("bias_tokens", "<u8"),
        ("bias_values", "<u8"),
        ("ban_tokens", "<u8"),
        ("mask", "<u8"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("repetition_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("top_k", "<i4"),
        ("num_bias", "<i4"),
        ("num_ban", "<i4"),
        ("ban_rows", "<i4"),
    ]
)

#: Field -> (least, most) of what the kernels define.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, float(np.finfo(np.float32).max)),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)),
    "top_k": (0, float(1 << 31)),
    "num_bias": (0, float(1 << 31)),
    "num_ban": (0, float(1 << 31)),
}


def pack_sampling(arrays: SamplingArrays, batch: int) -> NDArray[np.void]:
    """``arrays`` as ``SAMPLING_DTYPE`` ``[batch]``, one entry per sequence, ready for the kernels.

    Raises ValueError for a field of another length or a value out of range, naming the field and the sequence.
    """
    packed = np.zeros(batch, SAMPLING_DTYPE)
    for name in SamplingArrays._fields:
        values: NDArray[Any] = getattr(arrays, name)
        if values.shape != (batch,):
            raise ValueError(f"sampling.{name}: shape {values.shape} given; allowed: ({batch},), one per sequence")
        packed[name] = values
    for name, (least, most) in _RANGES.items():
        inside = (packed[name] >= least) & (packed[name] <= most)
        if not inside.all():
            b = int(np.argmin(inside))
            raise ValueError(f"sampling.{name}[{b}]: {packed[name][b]} given; allowed: {least:g} to {most:g}")
    return packed
