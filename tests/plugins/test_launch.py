"""Direct launch, with the emulation in the GPU's place: arguments, grids, workspace and checks are the real ones."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from trtplugins.acceptance import AcceptResult, LookupRule, lookup_host
from trtplugins.launch import CudaStream, DeviceArray, DeviceUnavailable, Launcher, require_device

from .kernel_emulation import Emulated
from .sequences import Batch, random_batch
from .test_emulated_kernels import DTYPES, on_host, same


class EmulatedStream:
    """A Backend whose device memory is NumPy's."""

    multiprocessors = 4

    def __init__(self, emulated: Emulated) -> None:
        self.emulated = emulated
        self.allocated: list[np.ndarray] = []
        self.launches: list[tuple[str, tuple[int, ...], int]] = []

    def launch(self, kernel: str, grid: tuple[int, ...], threads: int, arguments: list[Any]) -> None:
        self.launches.append((kernel, grid, threads))
        self.emulated.launch(kernel, grid, threads, arguments, "shuffled", len(self.launches))

    def zeros(self, count: int) -> tuple[int, Any]:
        memory = np.zeros(count, np.uint8)
        self.allocated.append(memory)
        return memory.ctypes.data, memory


def on_device(array: np.ndarray) -> DeviceArray:
    strides = tuple(s // array.itemsize for s in array.strides)
    return DeviceArray(array.ctypes.data, array.shape, array.dtype.name, strides)


@pytest.fixture
def stream(emulated: Emulated) -> EmulatedStream:
    return EmulatedStream(emulated)


def launch_accept(launcher: Launcher, batch: Batch, max_rows: int, **options: Any) -> AcceptResult:
    sequences, rows = len(batch.row_start), len(batch.logits)
    targets, accepted, next_ = (np.full(n, -1, np.int32) for n in (rows, sequences, sequences))
    failed = np.zeros(sequences, np.bool_)
    packed = batch.packed
    launcher.accept(
        on_device(batch.logits),
        on_device(batch.row_start),
        on_device(batch.num_rows),
        on_device(batch.tokens),
        None if packed is None else on_device(packed.view(np.uint8)),
        targets=on_device(targets),
        accepted=on_device(accepted),
        next_tokens=on_device(next_),
        failed=on_device(failed),
        max_rows=max_rows,
        **options,
    )
    return AcceptResult(targets, accepted, failed, next_)


@pytest.mark.parametrize("dtype", DTYPES)
def test_accept_decides_as_the_host_does(stream: EmulatedStream, dtype: Any) -> None:
    rng = np.random.default_rng(21)
    launcher = Launcher(stream)
    for sampled, processed in ((False, False), (True, False), (True, True)):
        for vocab in (40, 20_000 if not sampled else 400):
            batch = random_batch(rng, 6, vocab, 3, dtype, sampled=sampled, processed=processed)
            same(launch_accept(launcher, batch, 3, processing=processed), on_host(batch))
    assert any(grid[0] > 1 for kernel, grid, _ in stream.launches if "greedy" in kernel), "long rows are split"


def test_workspace_grows_and_is_reused(stream: EmulatedStream) -> None:
    rng = np.random.default_rng(22)
    launcher = Launcher(stream)
    batches = [random_batch(rng, n, 30, 2, np.float32, sampled=False, processed=False) for n in (5, 5, 50, 5)]
    sizes = []
    for batch in batches:
        same(launch_accept(launcher, batch, 2), on_host(batch))
        sizes.append(len(stream.allocated))
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3]


def test_a_sequence_of_too_many_rows_is_cut(stream: EmulatedStream) -> None:
    logits = np.eye(4, dtype=np.float32)
    rows, tokens = np.array([4], np.int32), np.array([9, 0, 1, 2], np.int32)
    batch = Batch(logits, rows * 0, rows, tokens, None, *[np.zeros(1)] * 5)
    launcher = Launcher(stream)
    cut = launch_accept(launcher, batch, 2)
    assert (cut.accepted.tolist(), cut.next.tolist()) == ([1], [1])
    whole = launch_accept(launcher, batch, 4)
    assert (whole.accepted.tolist(), whole.next.tolist()) == ([3], [3])


def test_accept_commit_lookup_follow_each_other(stream: EmulatedStream) -> None:
    """A decode loop on the device: a model that counts 0 1 2 0 1 2 ..., drafts from the history."""
    launcher = Launcher(stream)
    period, max_len, max_rows, length = 3, 64, 6, 9
    history = np.zeros((2, max_len), np.int32)
    history[:, :length] = np.arange(length) % period
    lengths = np.array([length, length], np.int32)
    allowed, start = np.array([5, 0], np.int32), np.zeros(2, np.int32)
    tokens, num_rows = np.zeros((2, max_rows), np.int32), np.zeros(2, np.int32)
    row_start = (np.arange(2) * max_rows).astype(np.int32)
    targets, accepted, next_ = np.zeros(2 * max_rows, np.int32), np.zeros(2, np.int32), np.zeros(2, np.int32)
    failed = np.zeros(2, np.uint8)
    rule = LookupRule(ngram=2, min_match=2, depth=2)
    for _ in range(4):
        launcher.lookup(
            on_device(history), on_device(lengths), on_device(allowed), rule,
            rows=on_device(tokens), num_rows=on_device(num_rows), start=on_device(start),
        )  # fmt: skip
        wanted = lookup_host(history, lengths, allowed, rule, max_rows)
        assert np.array_equal(wanted.num_rows, num_rows) and np.array_equal(wanted.start, start)
        logits = np.zeros((2 * max_rows, 4), np.float32)
        logits[np.arange(2 * max_rows), (tokens.reshape(-1) + 1) % period] = 1
        launcher.accept(
            on_device(logits), on_device(row_start), on_device(num_rows), on_device(tokens.reshape(-1)), None,
            targets=on_device(targets), accepted=on_device(accepted), next_tokens=on_device(next_),
            failed=on_device(failed), max_rows=max_rows,
        )  # fmt: skip
        launcher.commit(
            on_device(row_start), on_device(num_rows), on_device(targets), on_device(accepted),
            history=on_device(history), lengths=on_device(lengths),
        )  # fmt: skip
    assert lengths.tolist() == [length + 4 * 4, length + 4], "three drafts (the history's end) and one more, a round"
    for b in range(2):
        assert history[b, : lengths[b]].tolist() == [i % period for i in range(lengths[b])]


def test_what_is_refused(stream: EmulatedStream) -> None:
    launcher = Launcher(stream)
    batch = random_batch(np.random.default_rng(0), 2, 8, 2, np.float32, sampled=False, processed=False)
    with pytest.raises(ValueError, match="max_rows"):
        launch_accept(launcher, batch, 0)
    for field, value, message in (
        ("logits", batch.logits.astype(np.float64), "float64"),
        ("logits", np.asfortranarray(np.zeros((8, 8), np.float32)), "contiguous"),
        ("tokens", batch.tokens[:-1], "tokens"),
        ("num_rows", batch.num_rows.astype(np.int64), "num_rows: int64"),
        ("row_start", np.zeros((4,), np.int32)[::2], "row_start"),
    ):
        kept = getattr(batch, field)
        setattr(batch, field, value)
        with pytest.raises(ValueError, match=message):
            launch_accept(launcher, batch, 2)
        setattr(batch, field, kept)
    with pytest.raises(TypeError, match="CUDA device"):
        DeviceArray.of(torch.zeros(3))
    with pytest.raises(TypeError, match="list"):
        DeviceArray.of([1])
    assert stream.launches == []


def test_device_arrays_from_the_array_interface() -> None:
    class Array:
        def __init__(self, **interface: Any) -> None:
            self.__cuda_array_interface__ = {"data": (64, False), "version": 3, **interface}

    assert DeviceArray.of(Array(shape=(2, 3), typestr="<i4")) == (64, (2, 3), "int32", (3, 1))
    assert DeviceArray.of(Array(shape=(2, 3), typestr="<f2", strides=(20, 2))) == (64, (2, 3), "float16", (10, 1))
    given = DeviceArray(1, (2,), "int32", (1,))
    assert DeviceArray.of(given) is given


def test_cuda_core_takes_arguments_as_backend_says() -> None:
    """Integers as 64-bit addresses, NumPy scalars as values: how the pinned cuda.core lays arguments out."""
    handler = pytest.importorskip("cuda.core._kernel_arg_handler")
    address = (1 << 40) + 3
    held = handler.ParamHolder((address, np.int32(-5), np.int64(7 << 33), 0))
    places = ctypes.cast(held.ptr, ctypes.POINTER(ctypes.c_void_p))
    types = (ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
    assert [t.from_address(places[i]).value for i, t in enumerate(types)] == [address, -5, 7 << 33, 0]


def test_without_a_gpu_it_says_so_and_touches_no_driver() -> None:
    if importlib.util.find_spec("cuda") is not None:
        from cuda.bindings import runtime

        if runtime.cudaGetDeviceCount()[1]:
            pytest.skip("there is a GPU")
    with pytest.raises(DeviceUnavailable, match=r"cudaGetDeviceCount|install"):
        require_device()
    with pytest.raises(DeviceUnavailable):
        CudaStream(0)
