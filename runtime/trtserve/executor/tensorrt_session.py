"""The seam between the TensorRT executor's host logic and a device: memory, copies and one enqueue, on one stream.

Everything is ordered on the session's single stream. Nothing waits for the device except ``synchronize``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Binding(NamedTuple):
    """What a plan's tensor is bound to."""

    address: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """An enqueue with everything it is bound to. The same object again means the same addresses and shapes."""

    profile: int
    bindings: Mapping[str, Binding]
    """Every input and output of the plan, by name."""


class Session(ABC):
    """A deserialized plan on a device. One thread calls it."""

    device: str
    """What it runs on, for people."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """The address of new device memory, all zero, aligned to 256 bytes. Freed by ``close``.

        Raises ExecutorError when there is not enough.
        """

    @abstractmethod
    def host_array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A host array that ``upload`` and ``download`` may use without waiting. Freed by ``close``."""

    @abstractmethod
    def upload(self, address: int, source: NDArray[Any]) -> None:
        """Copy a contiguous ``host_array`` (or part of one) to the device. It must not change until a synchronize."""

    @abstractmethod
    def download(self, target: NDArray[Any], address: int) -> None:
        """Copy to a contiguous ``host_array`` (or part of one). Its content is defined after a synchronize."""

    @abstractmethod
    def copy_rows(self, target: int, source: int, pitch: int, width: int, rows: int) -> None:
        """Copy ``rows`` pieces of ``width`` bytes, ``pitch`` bytes apart on both sides, within device memory."""

    @abstractmethod
    def zero_rows(self, target: int, pitch: int, width: int, rows: int) -> None:
        """Zero ``rows`` pieces of ``width`` bytes, ``pitch`` bytes apart."""

    @abstractmethod
    def enqueue(self, call: Call) -> None:
        """Run the plan once. Raises ExecutorError when the runtime refuses."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything so far is done."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. A second call does nothing."""


def contiguous_bytes(array: NDArray[Any]) -> tuple[int, int]:
    """Address and size of a C-contiguous array. Raises ValueError for another."""
    if not array.flags.c_contiguous:
        raise ValueError(f"a copy needs a contiguous array, given strides {array.strides} of shape {array.shape}")
    return int(array.ctypes.data), array.nbytes
