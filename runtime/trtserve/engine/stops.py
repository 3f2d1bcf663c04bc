"""Stop strings, found while text streams.

The rule: reading the output one character at a time, the stop string that is complete first ends it (the longest one,
where two are complete at the same character). It does not depend on how the text was cut into tokens. Text that may
still become part of a stop string is held back.

Each stop string is matched by Knuth, Morris and Pratt's automaton: constant time per character, whatever its length.
"""

from __future__ import annotations

from collections.abc import Sequence


def _failure_table(pattern: str) -> list[int]:
    """Entry k: the length of the longest proper prefix of ``pattern[:k]`` that is also its suffix; entry 0 unused."""
    table = [0] * (len(pattern) + 1)
    k = 0
    for i in range(1, len(pattern)):
        while k and pattern[i] != pattern[k]:
            k = table[k]
        if pattern[i] == pattern[k]:
            k += 1
        table[i + 1] = k
    return table


class StopMatcher:
    """Follows several stop strings through one text."""

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first, so that of two complete at the same character the longest is reported.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._tables = [_failure_table(s) for s in self._stops]
        self._states = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """How many of the last characters may still become part of a stop string."""
        return max(self._states, default=0)

    def feed(self, text: str, may_stop: bool = True) -> tuple[int, str] | None:
        """Read ``text`` on. Returns (characters of ``text`` read, the stop string complete there), or None.

        With ``may_stop`` false a complete stop string is passed over.
        """
        states = self._states
        for at, char in enumerate(text, 1):
            found = None
            for i, stop in enumerate(self._stops):
                k = states[i]
                while k and stop[k] != char:
                    k = self._tables[i][k]
                if stop[k] == char:
                    k += 1
                if k == len(stop):
                    if may_stop and found is None:
                        found = stop
                    k = self._tables[i][k]
                states[i] = k
            if found is not None:
                return at, found
        return None
