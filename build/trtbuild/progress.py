"""How a long build shows that it is alive: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Advance = Callable[[int], None]


class Progress:
    """Says nothing: for scripts, tests and ``--json``."""

    @contextmanager
    def bar(self, label: str, length: int) -> Iterator[Advance]:
        """A step of ``length`` units; the body calls what it is given with the units done."""
        yield lambda n: None

    def note(self, text: str) -> None:
        """One line that a person watching would want."""

    def warn(self, text: str) -> None:
        """One line that a person must not miss."""


class TerminalProgress(Progress):
    """Writes to stderr: bars only when it is a terminal, notes and warnings always."""

    @contextmanager
    def bar(self, label: str, length: int) -> Iterator[Advance]:
        if not sys.stderr.isatty():
            yield lambda n: None
            return
        with click.progressbar(length=length, label=f"{label:<24}", file=sys.stderr) as bar:
            yield bar.update

    def note(self, text: str) -> None:
        click.echo(text, err=True)

    def warn(self, text: str) -> None:
        click.echo(f"warning: {text}", err=True)
