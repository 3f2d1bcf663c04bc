"""From a sequence's tokens to the text that may be shown: whole characters, no part of a stop string, by source."""

from __future__ import annotations

from collections.abc import Sequence

from trtserve.engine.drafting import TextDecoder
from trtserve.engine.protocol import Source
from trtserve.engine.stops import StopMatcher

Span = tuple[str, Source | None]


class TextStream:
    """One sequence's output text on its way out."""

    def __init__(self, decoder: TextDecoder, stops: Sequence[str] = (), include_stop: bool = False) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stops) if stops else None
        self._include_stop = include_stop
        self._pending: list[Span] = []
        self._last_source: Source | None = None
        self._stopped = False

    @property
    def has_stops(self) -> bool:
        """Whether tokens must be pushed one at a time, because any of them may end the text."""
        return self._matcher is not None

    def push(self, tokens: Sequence[int], source: Source | None, may_stop: bool = True) -> str | None:
        """Add tokens of one source. Returns the stop string they completed, after which nothing may be added."""
        self._last_source = source
        return self._add(self._decoder.push(tokens), source, may_stop)

    def finish(self, may_stop: bool = True) -> str | None:
        """The output is over: let go of everything held back. Returns the stop string that the last bytes completed."""
        if self._stopped:
            return None
        found = self._add(self._decoder.flush(), self._last_source, may_stop)
        self._stopped = True
        return found

    def take(self) -> tuple[Span, ...]:
        """The text that is safe to show since the last call, cut into runs of one source."""
        pending = self._pending
        if not pending:
            return ()
        held = 0 if self._matcher is None or self._stopped else self._matcher.held
        self._pending = self._cut(held) if held else []
        return tuple(_merged(pending))

    def _add(self, text: str, source: Source | None, may_stop: bool) -> str | None:
        if not text:
            return None
        if self._matcher is None or (found := self._matcher.feed(text, may_stop)) is None:
            self._pending.append((text, source))
            return None
        at, stop = found
        self._pending.append((text[:at], source))
        if not self._include_stop:
            self._cut(len(stop))
        self._stopped = True
        return stop

    def _cut(self, chars: int) -> list[Span]:
        """Take the last ``chars`` characters off the pending spans and return them, in order."""
        off: list[Span] = []
        while chars and self._pending:
            text, source = self._pending.pop()
            if len(text) > chars:
                self._pending.append((text[:-chars], source))
                text = text[-chars:]
            off.append((text, source))
            chars -= len(text)
        off.reverse()
        return off


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for text, source in spans:
        if merged and merged[-1][1] == source:
            merged[-1] = (merged[-1][0] + text, source)
        else:
            merged.append((text, source))
    return merged
