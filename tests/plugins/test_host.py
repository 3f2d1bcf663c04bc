"""accept_host: what it promises beyond the rule, which test_emulated_kernels compares."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from trtplugins import _host
from trtplugins.acceptance import accept_host

from .sequences import random_batch, sampling_arrays
from .test_emulated_kernels import on_host, same

ISAS = ["baseline", *({"avx2": ["avx2"], "avx512": ["avx2", "avx512"]}.get(_host.instruction_set(), []))]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_every_instruction_set_decides_alike(isa: str, dtype: Any) -> None:
    rng = np.random.default_rng(11)
    for vocab in (1, 63, 64, 65, 2047, 2048, 2049, 5000):
        for sampled in (False, True):
            batch = random_batch(rng, 30, vocab, 4, dtype, sampled=sampled, processed=sampled)
            result = on_host(batch, isa=isa)
            batch.check(result)
            same(result, on_host(batch, isa="baseline"))


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(threads: int) -> None:
    rng = np.random.default_rng(12)
    for sequences in (1, 7):
        batch = random_batch(rng, sequences, 70_000, 9, np.float32, sampled=True, processed=True)
        same(on_host(batch, threads), on_host(batch, 1))


def test_torch_tensors_of_every_format() -> None:
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(1))
    start, one = np.arange(6, dtype=np.int32), np.ones(6, np.int32)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = logits.to(dtype)
        assert accept_host(x, start, one, one, None, 1).next.tolist() == x.float().argmax(1).tolist()
    bits = logits.bfloat16().view(torch.uint16).numpy()
    assert accept_host(bits, start, one, one, None, 1).next.tolist() == logits.bfloat16().argmax(1).tolist()


def test_other_threads_run_meanwhile() -> None:
    """The interpreter's lock is not held: a Python thread makes progress during a long call."""
    logits = np.random.default_rng(0).normal(size=(64, 200_000)).astype(np.float32)
    start, rows = np.arange(64, dtype=np.int32), np.ones(64, np.int32)
    arrays = sampling_arrays(64, temperature=1.0, top_p=0.9, top_k=1000)
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.wait(0.0005):
            ticks.append(None)

    thread = threading.Thread(target=tick)
    thread.start()
    before = len(ticks)
    accept_host(logits, start, rows, rows * 0, arrays, 1)
    during = len(ticks) - before
    stop.set()
    thread.join()
    assert during > 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros((3, 4), np.float64)}, "dtype"),
        ({"logits": np.zeros((4, 3), np.float32).T}, "contiguous"),
        ({"logits": np.zeros((3, 0), np.float32)}, "vocab"),
        ({"tokens": np.zeros(2, np.int32)}, "tokens"),
        ({"tokens": np.zeros(3, np.int64)}, "tokens"),
        ({"num_rows": np.ones(1, np.int32)}, "num_rows"),
        ({"num_rows": np.array([1, 3], np.int32)}, "outside"),
        ({"num_rows": np.array([-1, 1], np.int32)}, "outside"),
        ({"row_start": np.array([-1, 1], np.int32)}, "outside"),
        ({"row_start": np.array([0, 0], np.int32)}, "two sequences"),
        ({"threads": 0}, "threads"),
        ({"sampling": sampling_arrays(1)}, r"sampling.temperature: shape \(1,\)"),
        ({"sampling": sampling_arrays(2, temperature=-1)}, r"temperature\[0\]: -1.0 given"),
        ({"sampling": sampling_arrays(2, temperature=np.nan)}, "temperature"),
        ({"sampling": sampling_arrays(2, top_p=1.5)}, "top_p"),
        ({"sampling": sampling_arrays(2, top_k=-1)}, "top_k"),
        ({"sampling": sampling_arrays(2, repetition_penalty=0)}, "repetition_penalty"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {
        "logits": np.zeros((3, 4), np.float32),
        "row_start": np.array([0, 1], np.int32),
        "num_rows": np.array([1, 2], np.int32),
        "tokens": np.zeros(3, np.int32),
        "sampling": None,
        "threads": 1,
    }
    accept_host(**call)
    with pytest.raises((ValueError, TypeError), match=message):
        accept_host(**{**call, **change})


def test_no_sequences_and_no_rows() -> None:
    none = np.zeros(0, np.int32)
    empty = accept_host(np.zeros((0, 4), np.float32), none, none, none, None, 2)
    assert [len(field) for field in empty] == [0, 0, 0, 0]
    zero = np.zeros(1, np.int32)
    idle = accept_host(np.zeros((2, 4), np.float32), zero, zero, np.zeros(2, np.int32), sampling_arrays(1), 1)
    assert idle.accepted.tolist() == [0] and idle.next.tolist() == [-1] and idle.failed.tolist() == [False]


def test_layout_of_the_sampling_entry() -> None:
    """96 bytes, which the source's static_assert checks from its side."""
    from trtplugins.sampling_arrays import SAMPLING_DTYPE, SamplingArrays

    assert SAMPLING_DTYPE.itemsize == 96
    assert set(SAMPLING_DTYPE.names or ()) == set(SamplingArrays._fields)
