"""Sampling states as the arrays the acceptance kernels read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtplugins.sampling_arrays import SamplingArrays
from trtserve.sampling import SamplingState


def sampling_arrays(states: Sequence[SamplingState]) -> SamplingArrays | None:
    """One entry per state, or None when every target is simply the highest logit.

    The arrays hold the addresses of the states' own arrays: valid while the states live and do not change.
    """
    if all(state.plain for state in states):
        return None
    params = [state.params for state in states]
    return SamplingArrays(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([min(p.top_k, np.iinfo(np.int32).max) for p in params], np.int32),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seed=np.array([state.seed for state in states], np.uint64),
        position=np.array([state.position for state in states], np.int64),
        repetition_penalty=np.array([p.repetition_penalty for p in params], np.float32),
        presence_penalty=np.array([p.presence_penalty for p in params], np.float32),
        frequency_penalty=np.array([p.frequency_penalty for p in params], np.float32),
        counts=_addresses([state.counts for state in states]),
        bias_tokens=_addresses([state.bias_tokens for state in states]),
        bias_values=_addresses([state.bias_values for state in states]),
        num_bias=np.array([len(state.bias_tokens) for state in states], np.int32),
        ban_tokens=_addresses([state.ban_tokens for state in states]),
        num_ban=np.array([len(state.ban_tokens) for state in states], np.int32),
        ban_rows=np.array([min(state.bans_left, np.iinfo(np.int32).max) for state in states], np.int32),
        mask=np.zeros(len(states), np.uint64),
    )


def _addresses(arrays: Sequence[NDArray[np.int32] | NDArray[np.float32] | None]) -> NDArray[np.uint64]:
    return np.array([a.ctypes.data if a is not None and len(a) else 0 for a in arrays], np.uint64)
