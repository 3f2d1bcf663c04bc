"""Standard input, output and error, whatever the shell has made of them."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Open what is closed, and let no character fail that a stream's encoding lacks.

    A closed standard output would give its number to the next file that is opened, and what is printed would go there.
    """
    for fd in range(3):
        if not _is_open(fd):
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
