"""Log-probabilities of emitted tokens, from raw logits."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from trtserve.executor.base import TokenLogprobs


def token_logprobs(logits: NDArray[np.float32], chosen: NDArray[np.int32], top: int) -> list[TokenLogprobs]:
    """One entry per row of ``logits`` (``[n, vocab_size]``): the chosen token's, and the ``top`` highest.

    Ties go to the lower token. A chosen token of -1 (the row had no finite logit) gives NaN and no alternatives.
    """
    logprobs = torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()
    return [
        TokenLogprobs(float(row[token]), *_top(row, top))
        if token >= 0
        else TokenLogprobs(math.nan, np.empty(0, np.int32), np.empty(0, np.float32))
        for row, token in zip(logprobs, chosen, strict=True)
    ]


def _top(row: NDArray[np.float32], n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    n = min(n, len(row))
    if n == 0:
        return np.empty(0, np.int32), np.empty(0, np.float32)
    lowest = np.partition(row, len(row) - n)[len(row) - n]
    candidates = np.flatnonzero(row >= lowest)  # n, and whatever ties with the last of them
    tokens = candidates[np.argsort(-row[candidates], kind="stable")[:n]]
    return tokens.astype(np.int32), row[tokens]
