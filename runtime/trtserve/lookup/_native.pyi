"""The native core. Its public faces are history.py, shared.py, window.py and drafter.py; rules and units are there.

Values that are not allowed raise ValueError and change nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trtserve.lookup.drafter import Drafts, Proposal
from trtserve.lookup.tokens import Tokens

_T = TypeVar("_T")

class Index:
    def __init__(self, ngram: int, hash_bits: int = 64) -> None: ...
    def append(self, tokens: Tokens) -> None: ...
    def truncate(self, length: int) -> None: ...
    def propose(self, limit: int, min_match: int) -> tuple[int, int, int]:
        """(start, length, match); all 0 where the last n-gram occurred nowhere before."""
    def occurrences(self) -> list[int]:
        """Positions after each earlier occurrence of the last n-gram, latest first."""
    def tokens(self, start: int, stop: int) -> list[int]: ...
    @property
    def bytes(self) -> int: ...
    def __len__(self) -> int: ...

class Window:
    def __init__(self, max_drafts: int, miss_backoff: int) -> None: ...
    def skip_round(self) -> bool: ...
    def settle(self, proposed: int, accepted: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def backing_off(self) -> bool: ...
    @property
    def rounds_skipped(self) -> int: ...

class SharedCache:
    def __init__(self, budget: int, scopes: int, key_length: int, min_share_tokens: int = 1024) -> None: ...
    def insert(self, scope: str, tokens: Tokens) -> None: ...
    def propose(self, scope: str, tail: Tokens, limit: int) -> tuple[list[int], int]: ...
    def ways(self, scope: str, tail: Tokens, limit: int, most: int) -> list[tuple[list[int], int, int, int, bool]]: ...
    def stats(self) -> tuple[int, int, int, int, int, int]: ...
    def locked(self, call: Callable[[], _T]) -> _T:
        """What ``call`` returns; other threads' calls of this cache wait for it, and it must not make any."""
    def names(self) -> list[str]: ...
    def save(self, scope: str) -> tuple[NDArray[np.uint32], NDArray[np.uint16], int, int] | None: ...
    def restore(
        self,
        scope: str,
        tokens: NDArray[np.uint32],
        seen: NDArray[np.uint16],
        key_length: int,
        documents: int,
        stored_at: int,
    ) -> None: ...
    @property
    def key_length(self) -> int: ...
    @property
    def share_bytes(self) -> int: ...
    @property
    def share_slots(self) -> int: ...
    @property
    def share_tokens(self) -> int: ...

class VerifyCost:
    """What a verify costs by its draft rows; make one with ``trtserve.lookup.cost.verify_cost``."""

    def __init__(self, batches: list[int] = ..., rows: list[list[float]] = ...) -> None:
        """``rows[k][r - 1]``: time of ``batches[k]`` sequences of r rows each, not falling. Without: the default."""
    def at(self, batch: int, extra: int) -> float:
        """Time of a verify of ``batch`` sequences and ``extra`` draft rows in all, over that of one without drafts."""

def shipped_priors() -> list[int]:
    """The adaptive policy's shares, in thousandths, by cell (csrc/odds.h)."""

def divide_rows(chances: list[list[float]], cost: VerifyCost, others: int = 0) -> list[int]:
    """Drafts of each sequence that a round verifies, given each draft's chance (csrc/row_budget.h)."""

class SequenceDrafter:
    """One sequence's side of drafting. Made by ``Drafter.start``, ended by ``Drafter.finish``."""

    def observe(self, tokens: Tokens) -> None:
        """Append committed output tokens, in order: what a round emitted, accepted drafts included."""
    def settle(self, accepted: int, verified: int | None = None) -> None:
        """Tell how many drafts of the last proposal were accepted: the policy learns from it.

        ``verified`` is how many of the drafts went through the verify, where that was fewer than proposed; a copy is
        accepted in full when all verified drafts were. ValueError where no proposal waits, or the numbers do not fit.
        """
    def abandon(self) -> None:
        """The last proposal was dropped unverified: that is neither a hit nor a miss."""
    def rewind(self, length: int) -> None:
        """Shrink prompt and output to their first ``length`` tokens, 0 to ``self.length``."""
    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
    @property
    def window(self) -> int:
        """Policy window: most drafts the next copy may have. Policy adaptive: drafts of the last one."""
    @property
    def backing_off(self) -> bool:
        """The next call of ``propose`` will be skipped after misses."""
    @property
    def rounds_skipped(self) -> int:
        """Calls of ``propose`` without a copy so far, because of the miss backoff or because none paid."""
    @property
    def finished(self) -> bool: ...
    @property
    def bytes(self) -> int:
        """Allocated for history and prediction."""

class Drafter:
    """Made as ``trtserve.lookup.drafter.Drafter``, which is described there."""

    def __init__(
        self,
        ngram: int,
        max_drafts: int,
        min_match: int,
        miss_backoff: int,
        shared: SharedCache | None,
        shared_key: int,
        policy: str,
        cost: VerifyCost,
        priors: list[int] | None,
        proposal: type[Proposal],
        no_copy: Proposal,
        sources: tuple[str, str, str],
        drafts: Callable[..., Drafts],
        empty: Callable[..., Any],
        int32: Any,
    ) -> None: ...
    def start(self, prompt: Tokens, *, prediction: Tokens = (), scope: str | None) -> SequenceDrafter:
        """Index a new sequence's prompt and prediction.

        ``scope`` names whose finished requests it may copy from, and to whom it leaves its own text; None: neither.
        Scopes are compared as they are: make them with ``trtserve.lookup.shared.scope_name``.
        """
    def propose(self, sequences: Sequence[SequenceDrafter], limits: Tokens, others: int = 0) -> list[Proposal]:
        """Drafts for one round of a batch: one native call, without the GIL.

        (A lone sequence keeps the GIL: its search is shorter than waiting to get the GIL back.)

        ``limits[i]`` is the most drafts sequence i may have by tier, token budget and context, int32 ``[B]``; 0 gives
        none. ``others`` sequences of the round take no part, but the batch is that much larger, and a row costs what it
        does there. Every proposal that is not empty waits until it is settled or abandoned. ValueError, with nothing
        changed, where a sequence is finished, another drafter's, named twice, or still has a proposal waiting.
        """
    def step(
        self,
        sequences: Sequence[SequenceDrafter],
        accepted: Tokens,
        emitted: Sequence[Tokens],
        limits: Tokens,
        others: int = 0,
    ) -> Drafts:
        """What a batch's last round showed, and its drafts for the next: one native call, without the GIL. It does ::

            for sequence, count, tokens in zip(sequences, accepted, emitted):
                sequence.settle(count) if count >= 0 and it waits for that else sequence.abandon()
                sequence.observe(tokens)
            part = [b for b, limit in enumerate(limits) if limit >= 0]
            others += len(sequences) - len(part)
            drafter.propose([sequences[b] for b in part], [limits[b] for b in part], others)

        ``accepted[i]``, int32 ``[B]``: drafts of sequence i that were accepted, 0 where it had none; -1 where those it
        had were not verified. ``emitted[i]``: its committed tokens, accepted drafts included; it may be empty, and
        ``emitted`` is a list or tuple. ``limits[i]``, int32 ``[B]``: as for ``propose``; -1: the sequence is in the
        next round's batch, but has no part in its drafts.

        ValueError, with nothing changed, for what any of these calls would refuse, and for lengths that differ.
        """
    def finish(self, sequence: SequenceDrafter, *, store: bool) -> None:
        """End a sequence and free its memory. ``store`` leaves its prompt and output in the shared cache.

        Without a shared cache or a scope nothing is stored. A proposal still waiting counts as abandoned.
        """
