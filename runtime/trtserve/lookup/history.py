"""The n-gram index of one history: where the sequence's last tokens occurred before, and what followed."""

from __future__ import annotations

from typing import NamedTuple

from trtserve.lookup import _native
from trtserve.lookup.tokens import Tokens


class Copy(NamedTuple):
    """A place in a history to copy from."""

    start: int  # position of the first token to propose
    length: int  # tokens to propose: at least 1, at most the limit, never past the history's end
    match: int  # tokens before start that equal the history's last tokens, counted to 64


class History:
    """Tokens of one sequence, with every n-gram that has a following token indexed.

    Every n-gram maps to the position after its latest occurrence; the final n-gram is not indexed, as nothing follows
    it. Equivalent to this search, in constant time per call and per token::

        for start in range(len(h) - 1, ngram - 1, -1):
            if h[start - ngram : start] == h[-ngram:]:
                match = the number of tokens before start equal to the last tokens of h
                return Copy(start, min(limit, len(h) - start), match) if match >= min_match else None

    Memory is at most 16 bytes per token from 1,000 tokens on. A history holds up to 2**24 - 1 tokens.

    Args:
        ngram: tokens of the key, 1 to 64.
        min_match: tokens that must match before a copy is proposed; at least ``ngram``, at most 64.
        hash_bits: bits kept of each hash. Below 64 only to provoke collisions in tests; results do not depend on it.
    """

    def __init__(self, ngram: int, min_match: int, *, hash_bits: int = 64) -> None:
        if not ngram <= min_match <= 64:
            raise ValueError(f"min_match is {min_match}; allowed: {ngram} (ngram) to 64")
        self._index = _native.Index(ngram, hash_bits)
        self._min_match = min_match

    def append(self, tokens: Tokens) -> None:
        """Add tokens at the end. ValueError for a negative id or too many tokens; then nothing was added."""
        self._index.append(tokens)

    def truncate(self, length: int) -> None:
        """Shrink to the first ``length`` tokens. The index is then that of a history which never held the others."""
        self._index.truncate(length)

    def propose(self, limit: int) -> Copy | None:
        """A copy of at most ``limit`` tokens, or None. Changes nothing."""
        start, length, match = self._index.propose(limit, self._min_match)
        return Copy(start, length, match) if length else None

    def occurrences(self) -> list[int]:
        """Positions after every earlier occurrence of the last n-gram, latest first."""
        return self._index.occurrences()

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens ``start`` to ``stop - 1``."""
        return self._index.tokens(start, stop)

    @property
    def bytes(self) -> int:
        """Memory allocated for tokens, links and table."""
        return self._index.bytes

    def __len__(self) -> int:
        return len(self._index)
