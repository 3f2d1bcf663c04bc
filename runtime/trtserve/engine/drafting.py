"""What the scheduler needs of a drafter and of a tokenizer: two small protocols, so that tests and other draft
sources (a drafter that is always wrong, an oracle, a draft model's own chain) plug in without the scheduler knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.protocol import Scope, Source


class Proposal(Protocol):
    """A copy for one round."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 ``[n]``; n = 0 means there is nothing to verify this round."""
        ...

    @property
    def source(self) -> Source | None:
        """Where the tokens came from; None when there are none."""
        ...


class SequenceDrafter(Protocol):
    """One sequence's drafting state. Owned by the scheduler's thread."""

    @property
    def window(self) -> int: ...

    @property
    def backing_off(self) -> bool: ...

    @property
    def rounds_skipped(self) -> int: ...

    def observe(self, tokens: NDArray[np.int32]) -> None:
        """Tokens were emitted, after the round that chose them was settled or abandoned."""
        ...

    def settle(self, accepted: int) -> None:
        """``accepted`` of the last proposal's tokens were."""
        ...

    def abandon(self) -> None:
        """The last proposal was never verified: it counts neither as a hit nor as a miss."""
        ...


class Drafter(Protocol):
    """Proposes drafts for the sequences of a round. ``trtserve.lookup.drafter.Drafter`` is one."""

    def start(self, prompt: NDArray[np.int32], *, prediction: NDArray[np.int32], scope: str | None) -> SequenceDrafter:
        """A drafter for a new sequence. ``scope`` None: nothing of other requests may be proposed to it, or kept."""
        ...

    def propose(self, sequences: Sequence[Any], limits: NDArray[np.int32], others: int) -> Sequence[Proposal]:
        """One proposal per sequence (each of this drafter's own), of at most ``limits[b]`` tokens, int32 ``[B]``.

        ``others``: sequences of the round beside these, which have no drafts of this drafter.
        """
        ...

    def finish(self, sequence: Any, *, store: bool) -> None:
        """The sequence is over. ``store``: its tokens may be copied by later requests of its scope."""
        ...


class SharedCacheStats(Protocol):
    """What a cross-request cache says of itself: ``trtserve.lookup.shared.SharedCacheStats`` is one."""

    @property
    def bytes(self) -> int: ...

    @property
    def budget(self) -> int: ...

    @property
    def scopes(self) -> int: ...

    @property
    def evictions(self) -> int: ...


class CountedCache(Protocol):
    """A cross-request cache, as far as the metrics are concerned. ``trtserve.lookup.shared.SharedCache`` is one."""

    def stats(self) -> SharedCacheStats: ...


class SaveStats(Protocol):
    """What became of a cache's saves: ``trtserve.lookup.persistence.SaveStats`` is one."""

    @property
    def saves(self) -> int: ...

    @property
    def failures(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def bytes(self) -> int: ...


class SharedCacheFile(Protocol):
    """Keeps a cross-request cache on disk. ``trtserve.lookup.persistence.Persistence`` is one."""

    @property
    def names(self) -> Callable[[Scope], str]:
        """How scopes are named in the file, and so to the drafter."""
        ...

    def save(self) -> bool:
        """Write what changed. From any thread; does not raise for a file that cannot be written."""
        ...

    def stats(self) -> SaveStats:
        """From any thread; does not wait for a save."""
        ...

    def close(self) -> None:
        """Save for the last time. A second call does nothing."""
        ...


class TextDecoder(Protocol):
    """Tokens to text for one sequence; whole UTF-8 characters only."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that ``ids`` complete; bytes of an unfinished character are kept for later."""
        ...

    def flush(self) -> str:
        """What is left, an unfinished character replaced by U+FFFD."""
        ...


class TextTokenizer(Protocol):
    """What the engine asks of a tokenizer. ``trtserve.tokenizer.Tokenizer`` is one."""

    def stream_decoder(self) -> TextDecoder:
        """A decoder for a new sequence's output."""
        ...
