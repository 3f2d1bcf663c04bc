"""The slot table: which sequence holds which slot, and which finished text a free slot's KV cache still holds.

A new request takes over a free slot whose text its prompt continues, so the shared prefix is not computed again. Only
committed tokens are ever offered, and only within one scope (tenant, adapter and salt all equal).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.protocol import Scope

_EMPTY = np.empty(0, np.int32)


class SlotOwner(Protocol):
    """A sequence in a slot."""

    @property
    def scope(self) -> Scope: ...

    @property
    def committed(self) -> NDArray[np.int32]:
        """The tokens whose keys and values are in the slot and verified."""
        ...


class Slot:
    """One sequence's place in the KV cache."""

    __slots__ = ("index", "kept", "kept_scope", "last_used", "owner")

    def __init__(self, index: int) -> None:
        self.index = index
        self.owner: SlotOwner | None = None
        self.kept: NDArray[np.int32] = _EMPTY
        """What a free slot still holds."""
        self.kept_scope: Scope | None = None
        self.last_used = 0

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens that may be reused from here."""
        return self.kept if self.owner is None else self.owner.committed

    @property
    def scope(self) -> Scope | None:
        return self.kept_scope if self.owner is None else self.owner.scope


class SlotTable:
    """All slots of an executor. ``reuse`` false: no request ever sees another's keys and values."""

    def __init__(self, slots: int, reuse: bool = True) -> None:
        self._slots = [Slot(i) for i in range(slots)]
        self._reuse = reuse
        self._clock = 0

    @property
    def num_free(self) -> int:
        return sum(slot.owner is None for slot in self._slots)

    def acquire(self, owner: SlotOwner, prompt: NDArray[np.int32]) -> tuple[Slot, int]:
        """Give a free slot to ``owner``. Returns it and how many of the prompt's first tokens it already holds.

        That is at most ``len(prompt) - 1``: the last token's row must be computed, for it chooses the first output.
        Raises IndexError when no slot is free.
        """
        free = [slot for slot in self._slots if slot.owner is None]
        if not free:
            raise IndexError(f"none of {len(self._slots)} slots is free")
        chosen = min(free, key=lambda slot: (len(slot.kept) > 0, slot.last_used))
        cached = 0
        if self._reuse:
            best, length = self._longest(free, owner.scope, prompt)
            # A slot most of whose text is something else is left alone for its own continuation: the caller copies
            # the prefix out of it instead (see longest_prefix).
            if best is not None and (best is chosen or 2 * length >= len(best.kept)):
                chosen, cached = best, length
        chosen.owner, chosen.kept, chosen.kept_scope = owner, _EMPTY, None
        self._touch(chosen)
        return chosen, cached

    def longest_prefix(self, taker: Slot, scope: Scope, prompt: NDArray[np.int32]) -> tuple[Slot | None, int]:
        """The other slot, running or free, that holds the longest prefix of ``prompt``, and that prefix's length."""
        if not self._reuse:
            return None, 0
        best, length = self._longest([slot for slot in self._slots if slot is not taker], scope, prompt)
        if best is not None:
            self._touch(best)
        return best, length

    def release(self, slot: Slot) -> None:
        """Free a slot; its committed tokens stay for reuse."""
        if self._reuse and slot.owner is not None:
            kept, scope = slot.owner.committed.copy(), slot.owner.scope
            slot.kept, slot.kept_scope = kept, scope
        slot.owner = None
        self._touch(slot)

    def reset(self, slot: Slot) -> None:
        """Free a slot whose content cannot be trusted."""
        slot.owner, slot.kept, slot.kept_scope = None, _EMPTY, None

    def forget(self) -> None:
        """Keep nothing of what free slots hold."""
        for slot in self._slots:
            if slot.owner is None:
                self.reset(slot)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    @staticmethod
    def _longest(slots: list[Slot], scope: Scope, prompt: NDArray[np.int32]) -> tuple[Slot | None, int]:
        best, best_length = None, 0
        for slot in slots:
            if slot.scope != scope:
                continue
            length = min(common_prefix(slot.tokens, prompt), len(prompt) - 1)
            if length > best_length:
                best, best_length = slot, length
        return best, best_length


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many leading tokens are equal. Reads in blocks, so an early difference is found without reading on."""
    end = min(len(a), len(b))
    start, block = 0, 64
    while start < end:
        stop = min(start + block, end)
        differs = a[start:stop] != b[start:stop]
        if differs.any():
            return start + int(differs.argmax())
        start, block = stop, block * 4
    return end
