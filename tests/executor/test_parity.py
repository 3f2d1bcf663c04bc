"""The native decoder computes what the torch operators compute, for every switch and storage type."""

from __future__ import annotations

import numpy as np
import pytest

from trtserve.executor import _cpu
from trtserve.executor.decoder import Rows

from .tiny import SHAPES, config, executor, ints, tokens, weights


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < 1e-4 * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("level", _cpu.levels())
@pytest.mark.parametrize("shape", SHAPES)
def test_native_logits_are_the_torch_operators(shape: str, level: str) -> None:
    c = config(shape)
    text = tokens(c, 340)
    native, reference = executor(c, cpu_level=level), executor(c, native=False)
    for e in (native, reference):
        e.prefill(3, 0, text[:250])
    assert close(native.logits(3, 250, text[250:]), reference.logits(3, 250, text[250:]))


@pytest.mark.parametrize("level", _cpu.levels())
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stored_half_floats_are_widened_exactly(dtype: str, tied: bool, level: str) -> None:
    c = config("biases", dtype, tie_word_embeddings=tied)
    text = tokens(c, 60)
    wide = {name: tensor.float() for name, tensor in weights(c).items()}
    # float32 storage of the same values: the same sums in the same order, so the same bits.
    reference = executor(config("biases", tie_word_embeddings=tied), tensors=wide, cpu_level=level)
    stored = executor(c, cpu_level=level)
    assert np.array_equal(stored.logits(0, 0, text), reference.logits(0, 0, text))
    assert close(stored.logits(1, 0, text), executor(c, native=False).logits(0, 0, text))


def test_subnormal_and_signed_half_floats() -> None:
    c = config("llama", "float16")
    tensors = weights(c)
    tensors["layers.0.q"].view(-1)[:6] = tensors["embed"].new_tensor([6e-8, -6e-8, 6e-5, -6e-5, -0.0, 65504.0])
    text = tokens(c, 20)
    results = [executor(c, tensors=tensors, cpu_level=level).logits(0, 0, text) for level in _cpu.levels()]
    for logits in results[1:]:
        assert close(logits, results[0])


def test_a_ragged_batch_matches_the_torch_operators() -> None:
    c = config("window")
    native, reference = executor(c), executor(c, native=False)
    rows = Rows(tokens(c, 12), ints(5, 0, 2), ints(90, 0, 41), ints(5, 1, 6), np.arange(12, dtype=np.int32))
    results = []
    for e in (native, reference):
        e.prefill(5, 0, tokens(c, 90, 1))
        e.prefill(2, 0, tokens(c, 41, 2))
        out = np.empty((12, c.vocab_size), np.float32)
        e._live().forward(rows, out)
        results.append(out)
    assert close(*results)


def test_only_the_rows_asked_for_get_logits() -> None:
    c = config()
    e = executor(c)
    text = tokens(c, 9)
    whole = e.logits(0, 0, text)
    out = np.empty((3, c.vocab_size), np.float32)
    e._live().forward(Rows(text, ints(1), ints(0), ints(9), ints(8, 0, 4)), out)
    assert np.array_equal(out, whole[[8, 0, 4]])


@pytest.mark.parametrize("native", [True, False])
def test_copy_prefix(native: bool) -> None:
    c = config("multi_head")
    e = executor(c, native=native)
    text = tokens(c, 70)
    e.prefill(0, 0, text)
    e.prefill(4, 0, tokens(c, 70, 9))
    e.copy_prefix(0, 4, 53)
    assert np.array_equal(e.logits(4, 53, text[53:]), e.logits(0, 53, text[53:]))
    # The rest of the target slot is no part of the copy, and the source is untouched.
    other = tokens(c, 10, 3)
    expected = e.logits(4, 53, other)
    e.copy_prefix(0, 0, 53)
    assert np.array_equal(e.logits(0, 53, other), expected)
