"""A row's logits are the same bits whatever else the forward computes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trtserve.executor import _cpu
from trtserve.executor.decoder import Rows
from trtserve.executor.torch import TorchExecutor

from .tiny import SHAPES, config, executor, ints, tokens, weights

LENGTH = 330  # beyond one key span, so that partial results are merged


def in_runs(e: TorchExecutor, slot: int, text: NDArray[np.int32], start: int, rows: int) -> NDArray[np.float32]:
    """Logits of text[start:], at most ``rows`` rows a forward."""
    return np.concatenate([e.logits(slot, i, text[i : i + rows]) for i in range(start, len(text), rows)])


@pytest.mark.parametrize("level", _cpu.levels())
@pytest.mark.parametrize("shape", ["llama", "one_kv_head", "window", "odd_sizes", "biases"])
def test_any_row_count_gives_the_same_bits(shape: str, level: str) -> None:
    c = config(shape)
    e = executor(c, cpu_level=level)
    text = tokens(c, LENGTH)
    e.prefill(0, 0, text[:256])
    expected = in_runs(e, 0, text, 256, 1)
    for rows in range(2, 26):
        assert np.array_equal(in_runs(e, 0, text, 256, rows), expected), rows


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_many_rows_at_once(dtype: str) -> None:
    c = config("odd_heads", dtype)
    e = executor(c)
    text = tokens(c, 256)
    assert np.array_equal(e.logits(0, 0, text), in_runs(e, 1, text, 0, 7))


@pytest.mark.parametrize("shape", SHAPES)
def test_any_thread_count_gives_the_same_bits(shape: str) -> None:
    c = config(shape)
    text = tokens(c, 300)
    results = []
    for threads in (1, 2, 3, 4):
        e = executor(c, threads=threads)
        e.prefill(0, 0, text[:200])
        results.append(np.concatenate((e.logits(0, 200, text[200:209]), in_runs(e, 0, text, 209, 60))))
    for logits in results[1:]:
        assert np.array_equal(logits, results[0])


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, LENGTH - 10), max_size=6, unique=True), slot=st.integers(0, 7))
def test_prefill_may_be_cut_anywhere(cuts: list[int], slot: int) -> None:
    text = tokens(SHARED.config, LENGTH)
    bounds = sorted({0, 160, LENGTH - 9, *cuts})
    for begin, end in itertools.pairwise(bounds):
        SHARED.executor.prefill(slot, begin, text[begin:end])
    assert np.array_equal(SHARED.executor.logits(slot, LENGTH - 9, text[LENGTH - 9 :]), SHARED.expected)


class _Shared:
    """One executor for the examples of a property: its results depend on nothing that came before."""

    def __init__(self) -> None:
        self.config = config("window")
        self.executor = executor(self.config)
        self.expected = in_runs(self.executor, 0, tokens(self.config, LENGTH), 0, 11)[-9:]


SHARED = _Shared()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_rest_of_the_batch_changes_nothing(data: st.DataObject) -> None:
    e, c = SHARED.executor, SHARED.config
    slots = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
    lengths = [data.draw(st.integers(0, 200)) for _ in slots]
    num_rows = [data.draw(st.integers(1, 12)) for _ in slots]
    texts = [tokens(c, n + r, seed) for seed, (n, r) in enumerate(zip(lengths, num_rows, strict=True))]
    alone = []
    for slot, length, text in zip(slots, lengths, texts, strict=True):
        if length:
            e.prefill(slot, 0, text[:length])
        alone.append(in_runs(e, slot, text, length, 1))
    packed = np.concatenate([text[n:] for text, n in zip(texts, lengths, strict=True)])
    out = np.empty((len(packed), c.vocab_size), np.float32)
    every = np.arange(len(packed), dtype=np.int32)
    e._live().forward(Rows(packed, ints(*slots), ints(*lengths), ints(*num_rows), every), out)
    assert np.array_equal(out, np.concatenate(alone))


def test_rejected_drafts_leave_no_trace() -> None:
    c = config("window")
    e = executor(c)
    text = tokens(c, 120)
    e.prefill(0, 0, text[:100])
    expected = in_runs(e, 0, text, 100, 1)
    e.prefill(1, 0, text[:100])
    got = []
    for i in range(100, 120):
        drafts = tokens(c, 8, seed=i)
        got.append(e.logits(1, i, np.concatenate((text[i : i + 1], drafts)))[:1])
    assert np.array_equal(np.concatenate(got), expected)


def test_a_slot_forgets_its_last_sequence_even_where_it_was_not_finite() -> None:
    c = config()
    tensors = weights(c)
    tensors["embed"][7] = float("nan")
    e = executor(c, tensors=tensors)
    text = np.where(tokens(c, 90) == 7, 8, tokens(c, 90)).astype(np.int32)
    expected = e.logits(0, 0, text)
    e.logits(0, 0, np.full(200, 7, np.int32))
    assert np.isfinite(expected[:, :7]).all()
    assert np.array_equal(np.nan_to_num(in_runs(e, 0, text, 0, 9)), np.nan_to_num(expected))


def test_a_copied_prefix_continues_with_the_same_bits() -> None:
    c = config()
    e = executor(c)
    text = tokens(c, LENGTH)
    expected = in_runs(e, 0, text, 0, 64)[300:]
    e.copy_prefix(0, 6, 300)
    assert np.array_equal(in_runs(e, 6, text, 300, 5), expected)


def test_the_same_run_twice() -> None:
    c = config("qk_norm")
    text = tokens(c, 40)
    assert np.array_equal(executor(c).logits(2, 0, text), executor(c).logits(2, 0, text))
