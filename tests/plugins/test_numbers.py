"""The numbers the rule is written in, from the kernels' source."""

from __future__ import annotations

import ctypes

import numpy as np

from . import acceptance_reference as reference
from .kernel_emulation import Emulated


def weights(emulated: Emulated, d: np.ndarray) -> np.ndarray:
    d = np.ascontiguousarray(d, np.float32)
    out = np.empty(len(d), np.uint64)
    emulated.library.weights_of(ctypes.c_void_p(d.ctypes.data), ctypes.c_void_p(out.ctypes.data), len(d))
    return out


def random_bits(emulated: Emulated, seed: int, positions: list[int]) -> list[int]:
    p, out = np.array(positions, np.uint64), np.empty(len(positions), np.uint64)
    emulated.library.random_bits_of(
        ctypes.c_uint64(seed), ctypes.c_void_p(p.ctypes.data), ctypes.c_void_p(out.ctypes.data), len(p)
    )
    return [int(v) for v in out]


def test_a_weight_is_two_to_the_32_times_the_exponential(emulated: Emulated) -> None:
    d = np.concatenate([-np.logspace(-8, np.log10(22.9), 20_000), np.linspace(-22.9, 0, 20_000)]).astype(np.float32)
    exact = np.exp(d.astype(np.float64)) * 2**32
    error = np.abs(weights(emulated, d).astype(np.float64) - exact)
    assert (error <= 1 + exact * 2**-21.5).all()


def test_weights_at_the_ends(emulated: Emulated) -> None:
    got = weights(emulated, np.array([0.0, -0.0, -23.0, -100.0, -3e38, -np.inf], np.float32))
    assert got.tolist() == [1 << 32, 1 << 32, 0, 0, 0, 0]
    just_below = np.nextafter(np.float32(0), np.float32(-1))
    assert weights(emulated, np.array([just_below, -1e-7], np.float32)).max() <= 1 << 32


def test_philox_known_answer(emulated: Emulated) -> None:
    # Random123's kat_vectors: philox4x32 10, counter and key zero -> 6627e8d5 e169c58d ...
    assert random_bits(emulated, 0, [0]) == [0xE169C58D6627E8D5] == [reference.philox(0, 0)]


def test_philox_is_keyed_by_seed_and_position(emulated: Emulated) -> None:
    positions = [0, 1, 2, 1 << 31, (1 << 40) + 3]
    for seed in (0, 1, 1 << 32, (1 << 64) - 1):
        assert random_bits(emulated, seed, positions) == [reference.philox(seed, p) for p in positions]


def test_half_precision_widens_exactly(emulated: Emulated) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty(1 << 16, np.float32)
    emulated.library.halves_to_float(ctypes.c_void_p(bits.ctypes.data), ctypes.c_void_p(out.ctypes.data), 1 << 16)
    want = bits.view(np.float16).astype(np.float32)
    assert np.array_equal(np.isnan(out), np.isnan(want))
    whole = ~np.isnan(want)
    assert np.array_equal(out[whole].view(np.uint32), want[whole].view(np.uint32))
