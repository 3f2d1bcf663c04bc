"""What the sampling kernels read of each sequence, as arrays: the boundary between a runtime and the kernels.

Addresses are plain integers so that one layout serves host and device: they point to host memory for the host build
and to device memory for a launch. 0 means absent.
"""

from __future__ import annotations

from typing import NamedTuple

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
    repetition_penalty: NDArray[np.float32]  # [B] 1 is off; tokens of prompt and output; divides logits > 0, multiplies others
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
