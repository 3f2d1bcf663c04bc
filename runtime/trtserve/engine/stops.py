"""Stop strings, found while text streams.

The rule: reading the output one character at a time, the stop string that is complete first ends it (the longest one,
where two are complete at the same character). It does not depend on how the text was cut into tokens. Text that may
still become part of a stop string is held back.

Each stop string is matched by Knuth, Morris and Pratt's automaton: constant time per character, whatever its length.
Its table is built as far as the text has matched, so a stop string costs what is read and not what it is long.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Automaton:
    """One stop string, and how many of its first characters the text ends with."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        #: Entry k: the length of the longest proper prefix of ``pattern[:k]`` that is also its suffix; entry 0 unused.
        self._table = [0, 0]

    def step(self, char: str) -> bool:
        """Read one character. True where the stop string is complete; then the longest match that may go on is kept."""
        pattern, table, k = self.pattern, self._table, self.state
        while k and pattern[k] != char:
            k = table[k]
        if pattern[k] == char:
            k += 1
            if k == len(table):
                # The characters matched are the pattern's own, so its next entry follows from those before it.
                j = table[k - 1]
                while j and pattern[j] != char:
                    j = table[j]
                table.append(j + 1 if pattern[j] == char else 0)
        complete = k == len(pattern)
        self.state = table[k] if complete else k
        return complete


class StopMatcher:
    """Follows several stop strings through one text."""

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first, so that of two complete at the same character the longest is reported.
        self._stops = [_Automaton(s) for s in sorted(set(stops), key=len, reverse=True)]

    @property
    def held(self) -> int:
        """How many of the last characters may still become part of a stop string."""
        return max((stop.state for stop in self._stops), default=0)

    def feed(self, text: str, may_stop: bool = True) -> tuple[int, str] | None:
        """Read ``text`` on. Returns (characters of ``text`` read, the stop string complete there), or None.

        With ``may_stop`` false a complete stop string is passed over.
        """
        for at, char in enumerate(text, 1):
            found = None
            for stop in self._stops:
                if stop.step(char) and may_stop and found is None:
                    found = stop.pattern
            if found is not None:
                return at, found
        return None
