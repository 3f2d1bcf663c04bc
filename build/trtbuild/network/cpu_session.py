"""A session that evaluates the network on the CPU: the whole executor, on a machine with no GPU.

A debugging tool, and what the executor's host logic is tested over. It is as strict as a device and stricter: work
happens only at ``synchronize``, as late as a stream may do it; addresses are checked against the allocations, shapes
against the profile; a cache output must be bound on top of its input.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trtbuild.network.interpreter import Interpreter
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import ExecutorError
from trtserve.executor.tensorrt_session import Binding, Call, Session, contiguous_bytes

_ALIGN = 256


class CpuSession(Session):
    """Runs ``interpreter`` as if it were a plan with these profiles. ``launches`` records every enqueue's profile."""

    device = "cpu (network interpreter)"

    def __init__(self, interpreter: Interpreter, profiles: Sequence[io.Profile]) -> None:
        self._interpreter = interpreter
        self._profiles = profiles
        self._memory: list[tuple[int, int, NDArray[np.uint8]]] = []
        self._queue: list[Callable[[], object]] = []
        self._hold: list[NDArray[Any]] = []
        self._closed = False
        self.launches: list[int] = []
        self.synchronizations = 0

    def allocate(self, nbytes: int) -> int:
        block = np.zeros(nbytes + _ALIGN, np.uint8)
        address = -(-int(block.ctypes.data) // _ALIGN) * _ALIGN
        self._memory.append((address, nbytes, block))
        return address

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        # Not zeros: pinned memory is not cleared either.
        array = np.empty(shape, dtype)
        array.view(np.uint8).fill(0xA5)
        return array

    def upload(self, address: int, source: NDArray[Any]) -> None:
        host, nbytes = contiguous_bytes(source)
        self._inside(address, nbytes)
        self._hold.append(source)
        self._queue.append(lambda: ctypes.memmove(address, host, nbytes))

    def download(self, target: NDArray[Any], address: int) -> None:
        host, nbytes = contiguous_bytes(target)
        self._inside(address, nbytes)
        self._hold.append(target)
        self._queue.append(lambda: ctypes.memmove(host, address, nbytes))

    def copy_rows(self, target: int, source: int, pitch: int, width: int, rows: int) -> None:
        self._inside(target, pitch * (rows - 1) + width)
        self._inside(source, pitch * (rows - 1) + width)

        def run() -> None:
            for i in range(rows):
                ctypes.memmove(target + i * pitch, source + i * pitch, width)

        self._queue.append(run)

    def zero_rows(self, target: int, pitch: int, width: int, rows: int) -> None:
        self._inside(target, pitch * (rows - 1) + width)

        def run() -> None:
            for i in range(rows):
                ctypes.memset(target + i * pitch, 0, width)

        self._queue.append(run)

    def enqueue(self, call: Call) -> None:
        self._check(call)
        self.launches.append(call.profile)
        self._queue.append(lambda: self._run(call.bindings))

    def synchronize(self) -> None:
        self.synchronizations += 1
        queue, self._queue = self._queue, []
        for work in queue:
            work()
        self._hold.clear()

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._memory.clear()

    def _run(self, bindings: Mapping[str, Binding]) -> None:
        inputs = {name: self._tensor(bindings[name], self._dtype(name)) for name in self._interpreter.input_names}
        for name, value in self._interpreter.run(inputs).items():
            target = self._tensor(bindings[name], value.dtype)
            if target.data_ptr() != value.data_ptr():
                if target.shape != value.shape:
                    given, wanted = list(target.shape), list(value.shape)
                    raise ExecutorError(f"{name} is bound as {given}, the network gives {wanted}")
                target.copy_(value)

    def _dtype(self, name: str) -> torch.dtype:
        return self._interpreter.input_dtypes[name]

    def _tensor(self, binding: Binding, dtype: torch.dtype) -> torch.Tensor:
        """Device memory as a tensor: no copy, so writes are seen by every binding of the same address."""
        if 0 in binding.shape:
            return torch.empty(binding.shape, dtype=dtype)
        nbytes = int(np.prod(binding.shape)) * dtype.itemsize
        self._inside(binding.address, nbytes)
        buffer = (ctypes.c_uint8 * nbytes).from_address(binding.address)
        return torch.frombuffer(buffer, dtype=dtype).reshape(binding.shape)

    def _inside(self, address: int, nbytes: int) -> None:
        if self._closed:
            raise ExecutorError("the session is closed")
        if not any(begin <= address and address + nbytes <= begin + size for begin, size, _ in self._memory):
            raise ExecutorError(f"{nbytes} bytes at {address:#x} are outside every allocation")

    def _check(self, call: Call) -> None:
        """What a runtime checks of an enqueue, or should."""
        p, bindings = self._profiles[call.profile], call.bindings
        names = {*self._interpreter.input_names, *self._interpreter.output_names}
        if names != bindings.keys():
            raise ExecutorError(f"not bound, or unknown: {', '.join(sorted(names ^ bindings.keys()))}")
        slots, rows = bindings[io.TOKEN_IDS].shape
        allowed = {
            io.TOKEN_IDS: ((1, 1), (p.batch, p.rows)),
            io.HEAD_ROWS: ((1,), (p.head_rows,)),
            io.LOGIT_ROWS: ((1,), (p.head_rows,)) if p.logits else ((0,), (0,)),
        }
        for name, (least, most) in allowed.items():
            shape = bindings[name].shape
            if not all(a <= n <= z for a, n, z in zip(least, shape, most, strict=True)):
                raise ExecutorError(f"{name} is {list(shape)}; profile {call.profile} takes {least} to {most}")
        for name, binding in bindings.items():
            if binding.address % _ALIGN:
                raise ExecutorError(f"{name} is bound at {binding.address:#x}, which is not a multiple of {_ALIGN}")
        for name in self._interpreter.input_names:
            if "_cache_" in name:
                kind, layer = name[0], int(name.rsplit("_", 1)[1])
                if bindings[name] != bindings[io.cache_output(kind, layer)]:
                    raise ExecutorError(f"{name} and {io.cache_output(kind, layer)} are not bound to the same memory")
                if bindings[name].shape[0] != slots:
                    raise ExecutorError(f"{name} has {bindings[name].shape[0]} slots, {io.TOKEN_IDS} {slots} of {rows}")
