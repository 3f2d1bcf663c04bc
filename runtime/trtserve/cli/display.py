"""Streaming a generation to a terminal, copies coloured by source."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Final

import click

from trtserve.engine.protocol import SOURCES, EngineError, Finish, Generation, GenerationStats, Source

COLOURS: Final[Mapping[Source, str]] = {
    "history": "green",
    "prediction": "cyan",
    "shared": "magenta",
    "model": "yellow",
}

#: Control characters other than newline and tab: a model's text must not steer the terminal.
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")


class Screen:
    """Where text goes: standard output, in colour or not."""

    def __init__(self, color: bool | None = None) -> None:
        """``color`` None: where standard output is a terminal."""
        self._terminal = sys.stdout.isatty()
        self._color = self._terminal if color is None else color

    def write(self, text: str, source: Source | None = None) -> None:
        if self._terminal:
            text = text.translate(_CONTROLS)
        if self._color and source is not None:
            text = click.style(text, fg=COLOURS[source])
        click.echo(text, nl=False, color=self._color)

    def legend(self) -> str:
        """What the colours mean; empty without colour."""
        return "  ".join(click.style(source, fg=COLOURS[source]) for source in SOURCES) if self._color else ""

    def stream(self, generation: Generation) -> tuple[str, Finish]:
        """Write a generation as it comes. Ctrl-C cancels it, and its end comes back as ``cancelled``.

        For the main thread: it handles SIGINT meanwhile.
        """
        text: list[str] = []
        with _cancel_on_interrupt(generation):
            for event in generation:
                if isinstance(event, Finish):
                    return "".join(text), event
                text.append(event.text)
                for piece, source in event.spans or ((event.text, None),):
                    self.write(piece, source)
        raise EngineError("the generation ended without a finish")


@contextlib.contextmanager
def _cancel_on_interrupt(generation: Generation) -> Iterator[None]:
    # A handler and not KeyboardInterrupt, which could strike between taking an event and using it: a lost Finish
    # would leave the reader waiting for ever.
    before = signal.signal(signal.SIGINT, lambda number, frame: generation.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def summary(stats: GenerationStats) -> str:
    """One line of statistics."""
    parts = [f"{stats.completion_tokens} tokens in {stats.rounds} rounds"]
    if stats.rounds:
        parts.append(f"{stats.completion_tokens / stats.rounds:.2f} a round")
    if stats.decode_time > 0:
        parts.append(f"{stats.completion_tokens / stats.decode_time:.1f} tokens/s")
    for name in SOURCES:
        source = stats.sources.get(name)
        if source and source.proposed:
            parts.append(f"{name} {source.accepted} of {source.proposed} accepted")
    parts.append(f"prompt {stats.prompt_tokens} ({stats.cached_tokens} reused)")
    return ", ".join(parts)
