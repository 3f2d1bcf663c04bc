"""Files that commands read and write, and what is said where that fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from trtserve.cli.failures import CommandError


class ResultPath(click.Path):
    """A file that a command will write in the end: refused at the start where it cannot be, not after the work."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"{path}: there is no directory {path.parent}", param, ctx)
        if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
            self.fail(f"{path}: no file can be written to {path.parent}", param, ctx)
        return path


def write_result(path: Path, text: str) -> None:
    """Raises CommandError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise CommandError(f"{path}: cannot be written: {e.strerror}") from e


def read_text(path: Path) -> str:
    """The text, in UTF-8, of a file, or of standard input where the path is ``-``. Raises CommandError."""
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return path.read_bytes().decode("utf-8")
    except OSError as e:
        raise CommandError(f"{path}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise CommandError(f"{path}: is not UTF-8: {e}") from e
