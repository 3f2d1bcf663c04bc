"""Rotary position embedding: the frequencies and tables of every variant in ``RopeConfig``, in NumPy.

Dimension ``d`` of a head and its partner ``d + head_dim / 2`` turn by ``position * inverse_frequency[d]``. Executors
and network builders take the tables from here, so one position means one rotation whatever the target.

Frequencies are float32 and each step is rounded to float32, as in the training code these models come from: at
position 100,000 a frequency that is off by one float32 step already turns a pair by 0.006 radians.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trtserve.model_config import RopeConfig

Float32 = NDArray[np.float32]


def inverse_frequencies(config: RopeConfig, head_dim: int) -> tuple[Float32, float]:
    """The turn per position of each pair, and what cosines and sines are multiplied with.

    Returns float32 ``[head_dim / 2]`` in radians per position, and the attention scale (1.0 except for ``yarn``).
    Raises ValueError when ``config`` lacks a field that its ``kind`` needs.
    """
    if config.kind == "yarn":
        return _yarn(config, head_dim)
    frequencies = np.float32(1.0) / _periods(config.theta, head_dim)
    if config.kind == "linear":
        frequencies = frequencies / np.float32(config.factor)
    elif config.kind == "llama3":
        frequencies = _llama3(config, frequencies)
    return frequencies, 1.0


def tables(config: RopeConfig, head_dim: int, max_position: int) -> tuple[Float32, Float32]:
    """Cosines and sines for positions 0 to ``max_position - 1``, attention scale included.

    Returns two float32 ``[max_position, head_dim / 2]``.
    """
    frequencies, scale = inverse_frequencies(config, head_dim)
    angles = (np.arange(max_position, dtype=np.float32)[:, None] * frequencies[None, :]).astype(np.float64)
    factor = np.float32(scale)
    return np.cos(angles).astype(np.float32) * factor, np.sin(angles).astype(np.float32) * factor


def _periods(theta: float, head_dim: int) -> Float32:
    """``theta ** (2 d / head_dim)``, each correctly rounded from the float32 exponent."""
    exponents: Float32 = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    periods: Float32 = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    return periods


def _llama3(config: RopeConfig, frequencies: Float32) -> Float32:
    """Llama 3.1's rule: long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    original = _needed(config, "original_max_position")
    low, high = _needed(config, "low_freq_factor"), _needed(config, "high_freq_factor")
    factor = np.float32(config.factor)
    wavelengths = np.float32(2 * math.pi) / frequencies
    blend = (np.float32(original) / wavelengths - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1) - blend) * frequencies / factor + blend * frequencies
    stretched = np.where(wavelengths > np.float32(original / low), frequencies / factor, frequencies)
    between = (wavelengths >= np.float32(original / high)) & (wavelengths <= np.float32(original / low))
    return np.where(between, blended, stretched).astype(np.float32)


def _yarn(config: RopeConfig, head_dim: int) -> tuple[Float32, float]:
    """YaRN (arXiv 2309.00071, section 3.2): pairs that turn often keep their speed, slow ones are interpolated."""
    original = _needed(config, "original_max_position")
    factor = config.factor
    scale = config.attention_factor
    if scale is None and config.mscale and config.mscale_all_dim:
        scale = _temperature(factor, config.mscale) / _temperature(factor, config.mscale_all_dim)
    elif scale is None:
        scale = _temperature(factor, 1.0)

    def pair_turning(rotations: float) -> float:
        """Which pair turns this many times within the original context, as a fractional index."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_turning(config.beta_fast), pair_turning(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp, without a division by zero
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    periods = _periods(config.theta, head_dim)
    interpolated = np.float32(1.0) / (np.float32(factor) * periods)
    frequencies = interpolated * (np.float32(1) - kept) + np.float32(1.0) / periods * kept
    return frequencies.astype(np.float32), float(scale)


def _temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _needed(config: RopeConfig, field: str) -> float:
    value = getattr(config, field)
    if value is None:
        raise ValueError(f"RoPE of kind {config.kind!r} needs {field}, which is not set")
    return float(value)
