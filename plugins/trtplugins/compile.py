"""The kernels' source, compiled by NVRTC and kept on disk. Needs the ``cuda`` extra, but no GPU and no driver."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).parent / "csrc"

#: No fused multiply-add and no approximations: the host computes the same bits.
OPTIONS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true")


class CompileError(Exception):
    """The kernels did not compile, or there is no compiler. The message has the compiler's log."""


class KernelResources(NamedTuple):
    """What one kernel needs of a multiprocessor, as ``ptxas`` reports it."""

    registers: int  # per thread
    shared_bytes: int  # per block
    spill_bytes: int  # stores and loads, per thread


def kernel_source() -> tuple[bytes, dict[str, bytes]]:
    """The translation unit, and the headers it includes by name."""
    return (CSRC / "kernels.cu").read_bytes(), {p.name: p.read_bytes() for p in sorted(CSRC.glob("*.cuh"))}


def cache_dir() -> Path:
    """``$TRTLOOKUP_CACHE_DIR``, else ``trtlookup`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("TRTLOOKUP_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtlookup"


def compile_kernels(architecture: str) -> bytes:
    """The kernels for ``architecture``: ``sm_90`` and the like give a cubin, ``compute_90`` and the like PTX.

    The result is kept in ``cache_dir()`` under a name made of source, architecture, options and compiler version. Any
    number of processes may ask at once: a file appears there whole or not at all, and one that is not what was
    written is compiled again. A cache that cannot be written is done without.

    Raises CompileError.
    """
    source, headers = kernel_source()
    key = hashlib.sha256()
    for part in (source, *headers.values(), architecture.encode(), *map(str.encode, OPTIONS), _nvrtc_version()):
        key.update(len(part).to_bytes(8, "little"))
        key.update(part)
    path = cache_dir() / f"kernels-{architecture}-{key.hexdigest()[:32]}"
    if (kept := _read(path)) is not None:
        return kept
    image, _ = _compile(architecture)
    _write(path, image)
    return image


def kernel_resources(architecture: str) -> dict[str, KernelResources]:
    """Each kernel's resources on ``architecture`` (``sm_90`` and the like). Compiles anew. Raises CompileError."""
    _, log = _compile(architecture, "--ptxas-options=-v")
    resources = {}
    for entry in log.split("Compiling entry function '")[1:]:
        name = entry[: entry.index("'")]
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", entry))
        registers = re.search(r"Used (\d+) registers", entry)
        shared = re.search(r"(\d+) bytes smem", entry)
        if registers is None:
            raise CompileError(f"{name}: no registers in the compiler's log:\n{entry}")
        resources[name] = KernelResources(int(registers[1]), int(shared[1]) if shared else 0, spills)
    return resources


def _nvrtc_version() -> bytes:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError(f"no NVRTC: install trtlookup[cuda] ({error})") from error
    return repr(nvrtc.nvrtcVersion()).encode()


def _compile(architecture: str, *more: str) -> tuple[bytes, str]:
    """(image, log). cuda.core's Program is not used: for PTX it asks for a driver."""
    if not re.fullmatch(r"(sm|compute)_\d+[af]?", architecture):
        raise CompileError(f"architecture {architecture!r} given; allowed: sm_90, compute_90 and the like")
    _nvrtc_version()
    from cuda.bindings import nvrtc

    source, headers = kernel_source()
    status, program = nvrtc.nvrtcCreateProgram(
        source, b"kernels.cu", len(headers), list(headers.values()), [name.encode() for name in headers]
    )
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"nvrtcCreateProgram: {status.name}")
    try:
        options = [o.encode() for o in (f"-arch={architecture}", *OPTIONS, *more)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        text = bytes(log)
        nvrtc.nvrtcGetProgramLog(program, text)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{architecture}: {status.name}\n{text.decode(errors='replace')}")
        size_of, get = (
            (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            if architecture.startswith("sm_")
            else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        )
        image = bytes(size_of(program)[1])
        get(program, image)
        return image, text.decode(errors="replace")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(path: Path) -> bytes | None:
    """What ``_write`` kept at ``path``; None if there is nothing, or not that."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, image = content[:32], content[32:]
    return image if hashlib.sha256(image).digest() == digest else None


def _write(path: Path, image: bytes) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(image).digest() + image)
            Path(name).replace(path)
        except BaseException:  # an interrupt, too, leaves nothing behind
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
