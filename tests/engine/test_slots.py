"""The slot table and the common prefix, apart from any engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trtserve.engine.protocol import Scope
from trtserve.engine.slots import SlotTable, common_prefix


class Owner:
    def __init__(self, tokens: list[int], scope: Scope = Scope()) -> None:  # noqa: B008
        self.committed = np.array(tokens, np.int32)
        self.scope = scope


def array(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


@given(st.lists(st.integers(0, 1), max_size=400), st.lists(st.integers(0, 1), max_size=400), st.integers(0, 400))
def test_common_prefix(a: list[int], b: list[int], shared: int) -> None:
    b = a[:shared] + b
    want = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(array(a), array(b)) == want


def test_a_free_slot_with_the_prefix_is_taken_and_the_last_token_is_left_to_compute() -> None:
    table = SlotTable(2)
    owner = Owner([1, 2, 3, 4])
    slot, cached = table.acquire(owner, array([1, 2]))
    assert cached == 0
    table.release(slot)
    again, cached = table.acquire(Owner([]), array([1, 2, 3, 4]))
    assert again is slot and cached == 3


@pytest.mark.parametrize("other", [Scope(tenant="b"), Scope(adapter="b"), Scope(salt="b")])
def test_scopes_never_mix(other: Scope) -> None:
    table = SlotTable(1)
    slot, _ = table.acquire(Owner([1, 2, 3]), array([1]))
    table.release(slot)
    assert table.acquire(Owner([], other), array([1, 2, 3, 4])) == (slot, 0)


def test_empty_slots_go_before_used_ones_then_the_least_recently_used() -> None:
    table = SlotTable(3)
    slots = [table.acquire(Owner([i, i, i]), array([i]))[0] for i in range(3)]
    table.release(slots[1])
    table.release(slots[0])
    assert table.acquire(Owner([]), array([9]))[0] is slots[1]
    table.reset(slots[2])
    assert table.acquire(Owner([]), array([9]))[0] is slots[2]


def test_a_long_text_is_not_evicted_for_a_short_shared_prefix() -> None:
    table = SlotTable(2)
    long, _ = table.acquire(Owner(list(range(100))), array([0]))
    table.release(long)
    taken, cached = table.acquire(Owner([]), array([0, 1, 2, 50, 51]))
    assert taken is not long and cached == 0
    assert table.longest_prefix(taken, Scope(), array([0, 1, 2, 50, 51])) == (long, 3)


def test_without_reuse_nothing_is_offered() -> None:
    table = SlotTable(2, reuse=False)
    slot, _ = table.acquire(Owner([1, 2, 3]), array([1]))
    assert table.longest_prefix(table.acquire(Owner([]), array([1, 2]))[0], Scope(), array([1, 2])) == (None, 0)
    table.release(slot)
    assert table.acquire(Owner([]), array([1, 2, 3, 4]))[1] == 0


def test_no_free_slot() -> None:
    table = SlotTable(1)
    table.acquire(Owner([]), array([1]))
    with pytest.raises(IndexError, match="none of 1 slots"):
        table.acquire(Owner([]), array([1]))
