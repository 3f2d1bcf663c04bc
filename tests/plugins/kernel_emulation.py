"""The kernels' own source, compiled by the host compiler through ``emulation/cuda_emulation.hpp``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import trtplugins

CSRC = Path(trtplugins.__file__).parent / "csrc"
EMULATION = Path(__file__).parent / "emulation"
ORDERS = {"ascending": 0, "descending": 1, "shuffled": 2}
FORMATS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def compile_emulated(csrc: Path, source: str, output: Path, *options: str) -> Path:
    """``source`` of ``emulation/`` against the kernels in ``csrc``."""
    command = [compiler(), "-std=c++20", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-Wno-unknown-pragmas", "-Wno-tsan"]
    command += {".so": ["-fPIC", "-shared"], ".gch": ["-fPIC"]}.get(output.suffix, ["-pthread"])
    command += [f"-I{csrc}", f"-I{EMULATION}", *options, str(EMULATION / source), "-o", str(output)]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[-4000:]}")
    return output


class Accepted(NamedTuple):
    targets: np.ndarray
    accepted: np.ndarray
    failed: np.ndarray
    next: np.ndarray


class Emulated:
    """A compiled library of kernels. ``order`` and ``seed`` say in which order threads and blocks take turns."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        arguments: list[Any],
        order: str = "ascending",
        seed: int = 0,
    ) -> None:
        """Arguments: arrays and integers are addresses, NumPy scalars values, None a null pointer."""
        keep = [_value(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(keep))(*[ctypes.addressof(k) for k in keep])
        dims = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
        error = ctypes.create_string_buffer(200)
        if self.library.emulated_launch(name.encode(), dims, threads, ORDERS[order], seed, pointers, error, 200):
            raise RuntimeError(error.value.decode())

    def accept(
        self,
        logits: np.ndarray,
        row_start: np.ndarray,
        num_rows: np.ndarray,
        tokens: np.ndarray,
        sampling: np.ndarray | None,
        *,
        threads: int = 64,
        splits: int = 1,
        order: str = "ascending",
        seed: int = 0,
    ) -> Accepted:
        """One accept, greedy if ``sampling`` (packed) is None. Checks that rows of no sequence are left alone."""
        batch, (rows, vocab) = len(row_start), logits.shape
        suffix = next(s for s, d in FORMATS.items() if d == logits.dtype)
        arrived = np.zeros(batch, np.uint32)
        targets = np.full(rows, -7, np.int32)
        accepted, next_, failed = (np.full(batch, 77, d) for d in (np.int32, np.int32, np.uint8))
        outputs = [arrived, targets, accepted, next_, failed]
        stride = np.int64(logits.strides[0] // logits.itemsize)
        head = [logits, stride, row_start, num_rows, tokens, np.int32(vocab)]
        most = max(int(num_rows.max(initial=0)), 1)
        if sampling is None:
            partial = np.full(rows * splits, 0xDEADBEEFDEADBEEF, np.uint64)
            grid = (splits, most, batch)
            self.launch(f"tl_accept_greedy_{suffix}", grid, threads, [*head, partial, *outputs], order, seed)
        else:
            scratch = np.full((rows, vocab), np.nan, np.float32)
            grid = (most, batch)
            self.launch(f"tl_accept_sampled_{suffix}", grid, threads, [*head, sampling, scratch, *outputs], order, seed)
        assert not arrived.any(), "counters are left as they were found"
        owned = np.zeros(rows, bool)
        for start, count in zip(row_start, num_rows, strict=True):
            owned[start : start + count] = True
        assert (targets[~owned] == -7).all(), "rows of no sequence are not written"
        targets[~owned] = -1
        return Accepted(targets, accepted, failed.astype(bool), next_)


def _value(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, np.int64):
        return ctypes.c_int64(int(argument))
    if isinstance(argument, np.int32):
        return ctypes.c_int32(int(argument))
    return ctypes.c_void_p(argument)  # an address
