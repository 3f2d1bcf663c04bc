"""Acceptance on the host, from logits that are there: the kernels' host build, and log-probabilities in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtplugins.acceptance import SamplingArrays, accept_host
from trtserve.executor.base import TokenLogprobs
from trtserve.sampling import SamplingState


class HostDecision(NamedTuple):
    """What ``accept_on_host`` decided; targets are packed like the rows."""

    targets: NDArray[np.int32]  # [T]
    accepted: NDArray[np.int32]  # [B]
    failed: NDArray[np.bool_]  # [B]
    logprobs: list[Sequence[TokenLogprobs] | None]  # [B]


def accept_on_host(
    logits: NDArray[np.float32],
    num_rows: NDArray[np.int32],
    tokens: NDArray[np.int32],
    sampling: Sequence[SamplingState],
    threads: int,
) -> HostDecision:
    """Targets, accepted counts and log-probabilities of packed rows.

    ``logits``: float32 ``[T, V]``; ``num_rows``: int32 ``[B]``; ``tokens``: int32 ``[T]``, each sequence's last
    committed token and its drafts.
    """
    row_start = np.concatenate(([0], np.cumsum(num_rows)))[:-1].astype(np.int32)
    result = accept_host(logits, row_start, num_rows.astype(np.int32), tokens, sampling_arrays(sampling), threads)
    logprobs: list[Sequence[TokenLogprobs] | None] = []
    for b, state in enumerate(sampling):
        if (wanted := state.params.logprobs) is None or result.failed[b]:
            logprobs.append(None)
            continue
        rows = range(int(row_start[b]), int(row_start[b]) + int(result.accepted[b]) + 1)
        logprobs.append([token_logprobs(logits[r], int(result.targets[r]), wanted) for r in rows])
    return HostDecision(result.targets, result.accepted, result.failed, logprobs)


def sampling_arrays(states: Sequence[SamplingState]) -> SamplingArrays:
    """The states as the kernels read them. The addresses are of the states' own arrays: keep the states alive."""

    def address(array: NDArray[np.generic] | None) -> int:
        return int(array.ctypes.data) if array is not None and len(array) else 0

    params = [s.params for s in states]
    return SamplingArrays(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int64).clip(0, 2**31 - 1).astype(np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seed=np.array([s.seed for s in states], np.uint64),
        position=np.array([s.position for s in states], np.int64),
        repetition_penalty=np.array([p.repetition_penalty for p in params], np.float32),
        presence_penalty=np.array([p.presence_penalty for p in params], np.float32),
        frequency_penalty=np.array([p.frequency_penalty for p in params], np.float32),
        counts=np.array([address(s.counts) for s in states], np.uint64),
        bias_tokens=np.array([address(s.bias_tokens) for s in states], np.uint64),
        bias_values=np.array([address(s.bias_values) for s in states], np.uint64),
        num_bias=np.array([len(s.bias_tokens) for s in states], np.int32),
        ban_tokens=np.array([address(s.ban_tokens) for s in states], np.uint64),
        num_ban=np.array([len(s.ban_tokens) for s in states], np.int32),
        ban_rows=np.array([min(s.bans_left, 2**31 - 1) for s in states], np.int32),
        mask=np.zeros(len(states), np.uint64),
    )


def token_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """Log-probabilities of one row's raw ``logits [V]``: the chosen token's, and the ``top`` highest."""
    wide = logits.astype(np.float64)
    peak = wide.max()
    values = (wide - (peak + np.log(np.exp(wide - peak).sum()))).astype(np.float32)
    count = min(top, len(values))
    if not count:
        return TokenLogprobs(float(values[token]), np.empty(0, np.int32), np.empty(0, np.float32))
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    candidates = np.flatnonzero(values >= threshold)
    best = candidates[np.lexsort((candidates, -values[candidates]))][:count].astype(np.int32)
    return TokenLogprobs(float(values[token]), best, values[best])
