"""What TensorRT-RTX compiled for a GPU, kept between starts: a file for each plan, GPU, driver and runtime version.

The runtime compiles a plan's kernels for the GPU it meets: when a context is made, at a shape's first run, and in the
background. What it compiled can be written out and given back to it at the next start. It checks what it is given
against the GPU, the driver and itself, and compiles again what it rejects; the checks here are for what it cannot
see: that a file is whole, that it is for this plan, and that nobody else could have written it, for it is code.

A file is ``MAGIC``, one line of JSON (``Identity``, the payload's size and its SHA-256), and the payload.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

_log = logging.getLogger(__name__)

MAGIC = b"trtlookup kernels 1\n"
#: More than any header has; what is longer is no header.
_MAX_HEADER = 1 << 16


@dataclass(frozen=True)
class Identity:
    """What kernels are compiled for. Those of another are never asked for."""

    runtime: str
    """Module and version, ``tensorrt_rtx 1.7.1.116``."""
    plan: str
    """The plan's SHA-256."""
    gpu: str
    compute_capability: int
    """10 * major + minor."""
    driver: int
    """CUDA's number for the driver, 1000 * major + 10 * minor."""

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{digest[:32]}.kernels"


class KernelCache:
    """One identity's file. Nothing here raises for a file system's or a file's fault: kernels can be compiled again."""

    def __init__(self, directory: Path, identity: Identity) -> None:
        """``directory`` is made when something is first written. Reads nothing yet."""
        self.path = directory / identity.file_name
        self._identity = identity
        self._written = b""

    def read(self) -> bytes | None:
        """What was kept; None where there is nothing, or, with a warning that has the reason, nothing to be used."""
        try:
            with self.path.open("rb") as f:
                payload = self._payload(f)
        except FileNotFoundError:
            return None
        except OSError as e:
            self.ignored(f"it cannot be read: {e.strerror}")
            return None
        except ValueError as e:
            self.ignored(str(e))
            return None
        self._written = hashlib.sha256(payload).digest()
        return payload

    def write(self, payload: bytes) -> bool:
        """Keep ``payload`` instead of what was there, in one step; nothing to do where it is what was last kept.

        False, with a warning, where the directory cannot be written: the next start compiles again.
        """
        digest = hashlib.sha256(payload).digest()
        if digest == self._written:
            return True
        header = {**asdict(self._identity), "bytes": len(payload), "sha256": digest.hex()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Readable by its owner alone, and not to be met half written under its own name.
            fd, partial = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            try:
                with os.fdopen(fd, "wb") as f:
                    f.write(MAGIC + json.dumps(header).encode() + b"\n")
                    f.write(payload)
                    f.flush()
                    os.fsync(f.fileno())
                Path(partial).replace(self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(partial).unlink()
                raise
        except OSError as e:
            _log.warning(
                "compiled kernels are not kept in %s (%s); the next start compiles them again. --kernel-cache names "
                "another directory, or off",
                self.path.parent,
                e.strerror,
            )
            return False
        self._written = digest
        return True

    def ignored(self, reason: str) -> None:
        """Say that the file is not used. What is compiled now takes its place."""
        _log.warning("%s is ignored, kernels are compiled again: %s", self.path, reason)

    def _payload(self, f: BinaryIO) -> bytes:
        """Raises ValueError with what is wrong with the file."""
        status = os.fstat(f.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("others than its owner could have written it, or its owner is another user")
        if f.read(len(MAGIC)) != MAGIC:
            raise ValueError("it is not a file of compiled kernels, or of another version of this program")
        header = _header(f.readline(_MAX_HEADER))
        wanted = asdict(self._identity)
        if foreign := [
            f"{key} {header.get(key)!r}, here {value!r}" for key, value in wanted.items() if header.get(key) != value
        ]:
            raise ValueError(f"it is for {'; '.join(foreign)}")
        payload = f.read()
        if len(payload) != header.get("bytes") or hashlib.sha256(payload).hexdigest() != header.get("sha256"):
            raise ValueError("it is damaged")
        return payload


def default_directory() -> Path | None:
    """Where kernels are kept unless told otherwise: ``trtlookup`` in the user's cache directory; None without one."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # any other value is to be ignored, says the convention it comes from
        return base / "trtlookup"
    try:
        return Path.home() / ".cache" / "trtlookup"
    except RuntimeError:  # a user without a home
        return None


def directory_of(setting: str | os.PathLike[str] | None) -> Path | None:
    """The directory that a setting names: a path, ``off`` for none, or None for the default."""
    if setting is None:
        return default_directory()
    return None if setting == "off" else Path(setting)


def _header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise ValueError("it is damaged")
    return header
