"""The cross-request cache: copies from finished requests of the same scope, bounded in bytes, scopes kept apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtserve.lookup import _native
from trtserve.lookup.tokens import Tokens
from trtserve.settings import MAX_SHARED_CACHE_MB, PromptLookup


class SharedCacheStats(NamedTuple):
    """A snapshot. The last three only grow."""

    bytes: int  # allocated for tables and rings now
    budget: int  # never exceeded
    scopes: int  # held now
    evictions: int  # scopes dropped
    documents: int  # documents inserted
    tokens: int  # tokens written to rings


class SharedCopy(NamedTuple):
    """What followed the longest match of the tail in an earlier document of the scope."""

    tokens: list[int]  # at least 1
    match: int  # tokens before them that equal the tail's last tokens, counted to 64


class SharedWay(NamedTuple):
    """A token that the scope's text may go on with, and what speaks for it."""

    tokens: list[int]  # it and what followed it, at the place with the longest match, the latest of equals
    match: int  # tokens before them that equal the tail's last tokens, counted to 64
    same: int  # how often the longest key that was followed by this token was followed by it, counted to 15,
    other: int  # and by other tokens
    longer: bool  # another token has a longer match


class SavedScope(NamedTuple):
    """One scope's text outside the cache. It fits a cache of any size."""

    name: str
    tokens: NDArray[np.uint32]  # [n] oldest first; bit 31 marks the first token of a stretch
    seen: NDArray[
        np.uint16
    ]  # [n] 4 bits for each length of key, the longest first: how often; 0: none leads to the token
    documents: int  # inserted into the scope, ever
    stored_at: int  # seconds since 1970 when the last of them was; 0: never


def mb_for(tokens: int) -> int:
    """MiB of a cache of one scope that holds as many tokens, at most ``MAX_SHARED_CACHE_MB``.

    At least half of a share is its ring, of 4-byte tokens.
    """
    return min((8 * tokens >> 20) + 1, MAX_SHARED_CACHE_MB)


def scope_name(*parts: str) -> str:
    """One scope's name from its parts (model, tokenizer, adapter, tenant, salt): different parts, different names."""
    return "".join(f"{len(part)}:{part}" for part in parts)


class SharedCache:
    """Texts of finished requests by scope, for copies into later requests of the same scope.

    Memory is split evenly over the scopes. A scope's share, taken when its first document comes and never changed,
    is a table of 8-byte entries, the largest power of two within half the share, and a ring of 4-byte tokens, the rest.

    An entry says that a key was followed by the token at a place of the ring, and how often. A key is ``key_length``
    tokens, or 2, or 1; or twice ``key_length``, where one of ``key_length`` has been followed by several. It has an
    entry for each token that followed it, in the 8 slots of its set. A new entry takes the oldest of them; of keys of 2
    and 1 tokens, which have an eighth of the sets to themselves, the rarest.

    ``insert`` walks a document. Where all of the next 32 tokens, or all that are left, stand after an earlier
    occurrence of the ``key_length`` tokens before them, nothing is stored as long as that repeat goes on. What is
    between repeats is a stretch: it is written to the ring after the key before it. So a re-sent conversation costs its
    new turn and one key. A place older than half of the ring, or of the table's entries, counts as none there: text
    that is in use is written again in time. A copy never runs past the stretch it lies in, hence never past its
    document. The ring overwrites its oldest tokens, and each entry is checked against the ring's tokens before use.

    One scope more than allowed drops the least recently used scope whole (inserting and proposing both are uses).
    Apart from that no call on one scope reads or changes another. Proposals depend on the order and arguments of calls
    alone.

    Args:
        mb: MiB for all scopes together, 1 to 65536.
        scopes: scopes kept, 1 to 256.
        key_length: tokens that must match, 1 to 64: ``PromptLookup.shared_key_length``.

    Raises ValueError where a share's ring would hold fewer than 1,024 tokens; the message has the numbers.
    """

    def __init__(self, mb: int, scopes: int, key_length: int) -> None:
        if not 1 <= mb <= MAX_SHARED_CACHE_MB:
            raise ValueError(f"shared cache: mb is {mb}; allowed: 1 to {MAX_SHARED_CACHE_MB}")
        self.native = _native.SharedCache(mb << 20, scopes, key_length)
        self.max_scopes = scopes

    @classmethod
    def from_settings(cls, settings: PromptLookup) -> SharedCache | None:
        """The cache these settings ask for; None where it is off."""
        shared = settings.shared_cache
        return cls(shared.mb, shared.scopes, settings.shared_key_length) if shared.mb else None

    def insert(self, scope: str, tokens: Tokens) -> None:
        """Store a finished request's prompt and output as one document of ``scope``.

        One of at most ``key_length`` tokens is ignored. ValueError for a negative id, with nothing stored.
        """
        self.native.insert(scope, tokens)

    def propose(self, scope: str, tail: Tokens, limit: int) -> SharedCopy | None:
        """A copy of at most ``limit`` tokens for a sequence that ends in ``tail``; None without one.

        It follows the longest match of the tail, which spans at least ``key_length`` tokens.
        """
        tokens, match = self.native.propose(scope, tail, limit)
        return SharedCopy(tokens, match) if tokens else None

    def ways(self, scope: str, tail: Tokens, limit: int, most: int) -> list[SharedWay]:
        """What may follow ``tail``: at most ``most`` ways, of each at most ``limit`` tokens. Asking is a use.

        The longest match first, of equals the one seen most often, of equals the latest.
        """
        return [SharedWay(*way) for way in self.native.ways(scope, tail, limit, most)]

    def scopes(self) -> list[str]:
        """Names of the scopes held, most recently used first. From any thread; is no use."""
        return self.native.names()

    def save(self, scope: str) -> SavedScope | None:
        """A scope's text; None for a scope that is not held. From any thread; is no use.

        The thread that inserts and proposes is not held up. A scope that is written meanwhile comes out valid, but
        lacks what was written after the call began, and what was overwritten during it.
        """
        saved = self.native.save(scope)
        return None if saved is None else SavedScope(scope, *saved)

    def restore(self, saved: SavedScope, key_length: int) -> None:
        """Make a scope of saved text, as the most recently used: its newest tokens, as far as they fit.

        ``key_length`` is that of the cache which saved it. Under the same key length and share the scope proposes, and
        stores, exactly what the saved one would have. Under another key length its stretches are inserted one by one;
        those of at most the new key length are lost.

        ValueError where the scope is held already, or the counts do not fit the tokens.
        """
        self.native.restore(saved.name, saved.tokens, saved.seen, key_length, saved.documents, saved.stored_at)

    def stats(self) -> SharedCacheStats:
        """May be called from any thread."""
        return SharedCacheStats(*self.native.stats())

    @property
    def key_length(self) -> int:
        return self.native.key_length

    @property
    def share(self) -> tuple[int, int, int]:
        """(bytes, table entries, ring tokens) of each scope."""
        return self.native.share_bytes, self.native.share_slots, self.native.share_tokens
