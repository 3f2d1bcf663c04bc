"""Direct launch of the kernels on a CUDA stream. Needs the ``cuda`` extra; torch only where torch tensors are given.

``Launcher`` turns arrays into launches and owns the workspace; ``CudaStream`` is where they go. The two meet at
``Backend``, so everything but ``CudaStream`` is tested without a GPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from trtplugins.compile import CompileError, compile_kernels
from trtplugins.host import LookupRule
from trtplugins.sampling_arrays import SAMPLING_DTYPE

#: Kernel suffix of each format of logits, by NumPy's or torch's name for it. uint16 holds bfloat16 bits.
_SUFFIXES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "uint16": "bf16"}
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}

_GREEDY_THREADS = 256
_SPAN_BYTES = 16384  # the least of a row that is worth a block of its own
_LOOKUP_SPAN = 4096  # tokens


class DeviceUnavailable(Exception):  # noqa: N818 - a state of the machine, not a mistake of the caller
    """There is no GPU that the kernels can be launched on. The message says why."""


class DeviceArray(NamedTuple):
    """Memory on the device, by address. Whoever makes one keeps the memory alive until the stream is done with it."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str  # NumPy's or torch's name, e.g. int32
    strides: tuple[int, ...]  # in elements

    @classmethod
    def of(cls, array: Any) -> DeviceArray:
        """A DeviceArray itself, a torch tensor, or anything with ``__cuda_array_interface__``. Copies nothing.

        Raises TypeError for anything else.
        """
        if isinstance(array, cls):
            return array
        if hasattr(array, "data_ptr"):
            if not array.is_cuda:
                raise TypeError(f"a tensor on {array.device} given; allowed: on a CUDA device")
            dtype = str(array.dtype).removeprefix("torch.")
            return cls(array.data_ptr(), tuple(array.shape), dtype, tuple(array.stride()))
        if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
            dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
            if (strides := interface.get("strides")) is None:
                strides = _dense_strides(shape, dtype.itemsize)
            return cls(interface["data"][0], shape, dtype.name, tuple(s // dtype.itemsize for s in strides))
        raise TypeError(f"{type(array).__name__} given; allowed: DeviceArray, torch tensor, __cuda_array_interface__")


class Backend(Protocol):
    """Where launches go. Everything is ordered by one stream."""

    multiprocessors: int

    def launch(self, kernel: str, grid: tuple[int, ...], threads: int, arguments: list[Any]) -> None:
        """Arguments: Python integers are addresses, NumPy scalars are values of their type."""

    def zeros(self, count: int) -> tuple[int, Any]:
        """(address, owner) of ``count`` zeroed bytes."""


class Launcher:
    """The kernels on one stream. One thread at a time; calls return before the device is done.

    Workspace grows to the largest call and is reused in stream order. Until a call's work is done its arrays must
    stay alive and unchanged, which holds by itself for torch tensors used on the same stream.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workspace: dict[str, tuple[int, int, Any]] = {}  # name -> (bytes, address, owner)

    def accept(
        self,
        logits: Any,  # [T, V] float32, float16, bfloat16, or uint16 holding bfloat16 bits; rows contiguous
        row_start: Any,  # [B] int32
        num_rows: Any,  # [B] int32
        tokens: Any,  # [T] int32
        sampling: Any | None,  # [B * 96] uint8: SAMPLING_DTYPE on the device; None: greedy on the raw logits
        *,
        targets: Any,  # [T] int32 out
        accepted: Any,  # [B] int32 out
        next_tokens: Any,  # [B] int32 out
        failed: Any,  # [B] uint8 or bool out
        max_rows: int,  # a sequence of more rows is cut to these
        processing: bool = True,  # False promises that no sequence has penalties, bias, bans or mask
    ) -> None:
        """``trtplugins.accept_host`` on the device: the same rule, arrays and results, bit for bit.

        Rows of no sequence keep what ``targets`` held. Raises TypeError or ValueError for arrays that are not as above.
        """
        x = DeviceArray.of(logits)
        if (suffix := _SUFFIXES.get(x.dtype)) is None:
            raise ValueError(f"logits: {x.dtype} given; allowed: {', '.join(_SUFFIXES)}")
        if len(x.shape) != 2 or x.shape[1] < 1 or (x.shape[1] > 1 and x.strides[1] != 1):
            raise ValueError(
                f"logits: shape {x.shape}, strides {x.strides} given; allowed: [rows, vocab], rows contiguous"
            )
        if max_rows < 1:
            raise ValueError(f"max_rows: {max_rows} given; allowed: at least 1")
        rows, vocab = x.shape
        batch = DeviceArray.of(row_start).shape[0]
        head = [x.pointer, np.int64(x.strides[0])]
        head += [_checked("row_start", row_start, ("int32",), batch), _checked("num_rows", num_rows, ("int32",), batch)]
        head += [_checked("tokens", tokens, ("int32",), rows), np.int32(vocab)]
        outputs = [
            _checked("targets", targets, ("int32",), rows),
            _checked("accepted", accepted, ("int32",), batch),
            _checked("next_tokens", next_tokens, ("int32",), batch),
            _checked("failed", failed, ("uint8", "bool"), batch),
        ]
        if batch == 0:
            return
        arrived = self._space("arrived", 4 * batch)
        if sampling is None:
            splits = self.greedy_splits(rows, vocab, suffix)
            partial = self._space("partial", 8 * rows * splits)
            arguments = [*head, partial, arrived, *outputs]
            self._backend.launch(f"tl_accept_greedy_{suffix}", (splits, max_rows, batch), _GREEDY_THREADS, arguments)
        else:
            entry = _checked("sampling", sampling, ("uint8",), batch * SAMPLING_DTYPE.itemsize)
            scratch = self._space("scratch", 4 * rows * vocab) if processing else 0
            threads = 1024 if rows <= self._backend.multiprocessors else 512
            arguments = [*head, entry, scratch, arrived, *outputs]
            self._backend.launch(f"tl_accept_sampled_{suffix}", (max_rows, batch), threads, arguments)

    def commit(
        self,
        row_start: Any,  # [B] int32, and the three below: as accept had or wrote them
        num_rows: Any,
        targets: Any,
        accepted: Any,
        *,
        history: Any,  # [B, max_len] int32, changed
        lengths: Any,  # [B] int32, changed
        sampling: Any | None = None,  # as accept's, changed
    ) -> None:
        """Append each sequence's emitted tokens to its history; with ``sampling``, advance its position and counts.

        A sequence that failed, or whose history is full, stays as it is.
        """
        h = _matrix("history", history)
        batch, max_len = h.shape
        arguments = [_checked(n, a, ("int32",), batch) for n, a in (("row_start", row_start), ("num_rows", num_rows))]
        arguments += [_checked("targets", targets, ("int32",)), _checked("accepted", accepted, ("int32",), batch)]
        arguments += [h.pointer, np.int32(max_len), _checked("lengths", lengths, ("int32",), batch)]
        size = batch * SAMPLING_DTYPE.itemsize
        arguments.append(0 if sampling is None else _checked("sampling", sampling, ("uint8",), size))
        if batch:
            self._backend.launch("tl_commit", (batch,), 64, arguments)

    def lookup(
        self,
        history: Any,  # [B, max_len] int32
        lengths: Any,  # [B] int32
        allowed: Any,  # [B] int32: most drafts of each sequence
        rule: LookupRule,
        *,
        rows: Any,  # [B, max_rows] int32 out
        num_rows: Any,  # [B] int32 out
        start: Any,  # [B] int32 out
    ) -> None:
        """``trtplugins.lookup_host`` on the device. Raises TypeError or ValueError for arrays that are not as above."""
        ngram, min_match, depth = rule.checked()
        h, r = _matrix("history", history), _matrix("rows", rows)
        batch, max_len = h.shape
        max_rows = r.shape[1]
        if r.shape[0] != batch or max_rows < 1:
            raise ValueError(f"rows: shape {r.shape} given; allowed: ({batch}, at least 1)")
        arguments = [h.pointer, np.int32(max_len)]
        arguments += [_checked(n, a, ("int32",), batch) for n, a in (("lengths", lengths), ("allowed", allowed))]
        arguments += [np.int32(v) for v in (ngram, min_match, depth, max_rows)]
        if batch == 0:
            return
        splits = max(1, math.ceil(max_len / _LOOKUP_SPAN))
        arguments += [self._space("partial", 8 * batch * splits), self._space("arrived", 4 * batch), r.pointer]
        arguments += [_checked(n, a, ("int32",), batch) for n, a in (("num_rows", num_rows), ("start", start))]
        self._backend.launch("tl_lookup", (splits, batch), 256, arguments)

    def greedy_splits(self, rows: int, vocab: int, suffix: str) -> int:
        """Blocks per row: four a multiprocessor over all rows, but none for less than ``_SPAN_BYTES``."""
        wanted = math.ceil(4 * self._backend.multiprocessors / max(rows, 1))
        return max(1, min(wanted, vocab * _ITEM_BYTES[suffix] // _SPAN_BYTES))

    def _space(self, name: str, count: int) -> int:
        """Address of at least ``count`` bytes, zero when new; what a kernel leaves there stays."""
        have = self._workspace.get(name)
        if have is None or have[0] < count:
            address, owner = self._backend.zeros(count)
            self._workspace[name] = have = (count, address, owner)
        return have[1]


class CudaStream:
    """A CUDA stream as a Backend: the kernels compiled for its device, launched through ``cuda.core``."""

    def __init__(self, stream: int, device: int = 0) -> None:
        """``stream``: a ``cudaStream_t`` as an integer (0: the default stream) of ``device``, kept by the caller.

        Raises DeviceUnavailable, or CompileError if NVRTC is missing.
        """
        require_device(device)
        import cuda.core as core

        self._core = core
        self._device = core.Device(device)
        self._device.set_current()
        self._stream = core.Stream.from_handle(stream) if stream else core.LEGACY_DEFAULT_STREAM
        self.multiprocessors = int(self._device.properties.multiprocessor_count)
        capability = self._device.compute_capability
        try:
            image = compile_kernels(f"sm_{capability.major}{capability.minor}")
        except CompileError as error:
            raise DeviceUnavailable(f"device {device}: {error}") from error
        self._code = core.ObjectCode.from_cubin(image)
        self._kernels: dict[str, Any] = {}

    def launch(self, kernel: str, grid: tuple[int, ...], threads: int, arguments: list[Any]) -> None:
        if (loaded := self._kernels.get(kernel)) is None:
            loaded = self._kernels[kernel] = self._code.get_kernel(kernel)
        self._core.launch(self._stream, self._core.LaunchConfig(grid=grid, block=threads), loaded, *arguments)

    def zeros(self, count: int) -> tuple[int, Any]:
        buffer = self._device.allocate(count, stream=self._stream)
        buffer.fill(0, stream=self._stream)
        return int(buffer.handle), buffer


def require_device(device: int = 0) -> None:
    """Raises DeviceUnavailable unless the CUDA runtime sees ``device``.

    Asked before anything touches the driver: without a driver, a failed driver call leaves a lock behind in
    ``cuda.core`` on which the next one waits for ever.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise DeviceUnavailable(f"install trtlookup[cuda] ({error})") from error
    status, count = runtime.cudaGetDeviceCount()
    if status != runtime.cudaError_t.cudaSuccess:
        raise DeviceUnavailable(f"cudaGetDeviceCount: {status.name}")
    if not 0 <= device < count:
        raise DeviceUnavailable(f"device {device} given; this machine has {count}")


def _dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    for size in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= size
    return tuple(strides)


def _is_dense(array: DeviceArray) -> bool:
    wanted = _dense_strides(array.shape, 1)
    return all(n <= 1 or s == w for n, s, w in zip(array.shape, array.strides, wanted, strict=True))


def _checked(name: str, array: Any, dtypes: tuple[str, ...], size: int | None = None) -> int:
    """Address of a dense array of one of ``dtypes`` and ``size`` elements."""
    a = DeviceArray.of(array)
    if a.dtype not in dtypes or not _is_dense(a) or (size is not None and math.prod(a.shape) != size):
        what = f"{a.dtype} of shape {a.shape} and strides {a.strides}"
        raise ValueError(f"{name}: {what} given; allowed: dense {' or '.join(dtypes)} of {size} elements")
    return a.pointer


def _matrix(name: str, array: Any) -> DeviceArray:
    a = DeviceArray.of(array)
    if a.dtype != "int32" or len(a.shape) != 2 or not _is_dense(a):
        raise ValueError(f"{name}: {a.dtype} of shape {a.shape} given; allowed: dense int32 of 2 dimensions")
    return a
