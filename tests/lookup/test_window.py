"""The window and the miss backoff against the rule in words."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve.lookup.window import Window

from . import reference


def agree(window: Window, model: reference.Window, events: list[tuple[bool, int, int]]) -> bool:
    """Whether both answer alike; an event is (a round is counted first, proposed, accepted)."""
    for counted, proposed, accepted in events:
        if counted and window.skip_round() != model.skip_round():
            return False
        if proposed:
            window.settle(proposed, accepted)
            model.settle(proposed, accepted)
        if (window.size, window.backing_off, window.rounds_skipped) != (
            model.size,
            model.to_skip > 0,
            model.rounds_skipped,
        ):
            return False
    return True


@st.composite
def events(draw: st.DrawFn) -> list[tuple[bool, int, int]]:
    steps = []
    for _ in range(draw(st.integers(0, 60))):
        proposed = draw(st.integers(0, 4))
        steps.append(
            (draw(st.booleans()), proposed, draw(st.sampled_from([0, proposed, draw(st.integers(0, proposed))])))
        )
    return steps


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 64), st.integers(0, 40), events())
def test_agrees_with_the_rule(max_drafts: int, miss_backoff: int, steps: list[tuple[bool, int, int]]) -> None:
    assert agree(Window(max_drafts, miss_backoff), reference.Window(max_drafts, miss_backoff), steps)


def campaign(fault: str) -> bool:
    rng = random.Random(3)
    for _ in range(200):
        max_drafts, miss_backoff = rng.randint(1, 12), rng.choice([0, 1, 5, 16])
        steps = []
        for _ in range(40):
            proposed = rng.randint(0, 3)
            steps.append((rng.random() < 0.8, proposed, rng.choice([0, 0, proposed, rng.randint(0, proposed)])))
        if not agree(Window(max_drafts, miss_backoff), reference.Window(max_drafts, miss_backoff, fault), steps):
            return True
    return False


def test_campaign_finds_nothing_without_a_fault() -> None:
    assert not campaign("")


@pytest.mark.parametrize("fault", reference.WINDOW_FAULTS)
def test_campaign_finds_every_fault(fault: str) -> None:
    assert campaign(fault)


def test_doubles_to_the_ceiling_and_halves_to_one() -> None:
    window = Window(12, 0)
    sizes = []
    for accepted in (1, 1, 1, 1, 0, 0, 0, 0, 0, 1):
        sizes.append(window.size)
        window.settle(1, accepted)
    assert sizes == [2, 4, 8, 12, 12, 6, 3, 1, 1, 1]
    assert Window(1, 16).size == 1


def test_partly_accepted_copies_shrink_the_window_but_clear_the_misses() -> None:
    window = Window(8, 16)
    window.settle(2, 0)
    window.settle(2, 0)
    assert window.backing_off
    window.settle(2, 1)
    assert not window.backing_off
    window.settle(2, 0)
    assert [window.skip_round() for _ in range(3)] == [True, False, False]


def test_skips_1_2_4_8_16_16_rounds() -> None:
    window = Window(8, 16)
    skipped = []
    for _ in range(7):
        window.settle(1, 0)
        before = window.rounds_skipped
        while window.skip_round():
            pass
        skipped.append(window.rounds_skipped - before)
    assert skipped == [1, 2, 4, 8, 16, 16, 16]


def test_any_number_of_misses_stays_within_the_largest_backoff() -> None:
    window = Window(8, 1024)
    for _ in range(200):
        window.settle(1, 0)
    while window.skip_round():
        pass
    assert window.rounds_skipped == 1024


def test_no_backoff_never_skips() -> None:
    window = Window(8, 0)
    for _ in range(5):
        window.settle(3, 0)
        assert not window.backing_off and not window.skip_round()


def test_numbers_that_cannot_be_are_refused() -> None:
    for max_drafts, miss_backoff in ((0, 0), (65, 0), (8, -1), (8, 1025)):
        with pytest.raises(ValueError, match="allowed"):
            Window(max_drafts, miss_backoff)
    window = Window(8, 16)
    for proposed, accepted in ((0, 0), (2, 3), (2, -1), (-1, -1)):
        with pytest.raises(ValueError, match="allowed"):
            window.settle(proposed, accepted)
    assert window.size == 2 and not window.backing_off
