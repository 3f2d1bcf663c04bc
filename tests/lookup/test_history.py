"""The n-gram index against a literal search, and at its edges."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve.lookup.history import Copy, History

from . import reference

INT32_MAX = 2**31 - 1


def drafts(history: History, limit: int) -> tuple[list[int], int] | None:
    copy = history.propose(limit)
    return copy and (history.tokens(copy.start, copy.start + copy.length), copy.match)


def assert_agree(history: History, model: reference.History) -> None:
    assert len(history) == len(model.tokens)
    assert history.tokens(0, len(history)) == model.tokens
    assert history.occurrences() == model.occurrences()
    for limit in (1, 3, 64):
        assert drafts(history, limit) == model.propose(limit)
    assert history.propose(0) is None


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, int, int, list[list[int] | int]]:
    """(ngram, min_match, hash bits, steps): a step appends a list, or rewinds by a number of tokens."""
    ngram = draw(st.integers(1, 5))
    token = st.integers(0, draw(st.integers(0, 2)))
    step = st.lists(token, max_size=12) | st.integers(0, 12)
    min_match = draw(st.integers(ngram, 8))
    return ngram, min_match, draw(st.sampled_from([0, 1, 3, 64])), draw(st.lists(step, max_size=14))


@settings(max_examples=400, deadline=None)
@given(scripts())
def test_agrees_with_a_literal_search(script: tuple[int, int, int, list[list[int] | int]]) -> None:
    ngram, min_match, hash_bits, steps = script
    history = History(ngram, min_match, hash_bits=hash_bits)
    model = reference.History(ngram, min_match)
    for step in steps:
        if isinstance(step, list):
            history.append(step)
            model.append(step)
        else:
            length = max(0, len(model.tokens) - step)
            history.truncate(length)
            model.truncate(length)
        assert_agree(history, model)


def campaign(fault: str) -> bool:
    """Whether a few thousand random steps tell the native index from a reference with this fault."""
    rng = random.Random(5)
    for _ in range(150):
        ngram = rng.randint(1, 4)
        min_match = rng.randint(ngram, 6)
        history, model = History(ngram, min_match), reference.History(ngram, min_match, fault)
        for _ in range(25):
            if rng.random() < 0.3:
                length = rng.randint(max(0, len(history) - 8), len(history))
                history.truncate(length)
                model.truncate(length)
            else:
                tokens = [rng.randrange(2) for _ in range(rng.randint(1, 6))]
                history.append(tokens)
                model.append(tokens)
            limit = rng.choice([1, 4, 20])
            if drafts(history, limit) != model.propose(limit):
                return True
    return False


def test_campaign_finds_nothing_without_a_fault() -> None:
    assert not campaign("")


@pytest.mark.parametrize("fault", reference.HISTORY_FAULTS)
def test_campaign_finds_every_fault(fault: str) -> None:
    assert campaign(fault)


@pytest.mark.parametrize("hash_bits", [4, 64])
def test_growing_and_rewinding_a_long_history_in_uneven_pieces(hash_bits: int) -> None:
    rng = random.Random(1)
    history, model = History(3, 3, hash_bits=hash_bits), reference.History(3, 3)
    top = 400 if hash_bits < 64 else 3000
    while len(model.tokens) < top:
        if rng.random() < 0.2:
            length = rng.randint(len(model.tokens) // 2, len(model.tokens))
            history.truncate(length)
            model.truncate(length)
        piece = [rng.randrange(12) for _ in range(rng.choice([1, 2, 5, 200]))]
        history.append(piece)
        model.append(piece)
        assert drafts(history, 8) == model.propose(8)
        assert history.occurrences() == model.occurrences()
    for length in range(len(model.tokens), 0, -7):
        history.truncate(length)
        model.truncate(length)
        assert drafts(history, 8) == model.propose(8)
        assert history.occurrences() == model.occurrences()


def test_matches_at_position_0() -> None:
    history = History(2, 2)
    history.append([7, 8, 9, 7, 8])
    assert history.propose(8) == Copy(start=2, length=3, match=2)


def test_a_match_that_overlaps_itself_stops_at_the_end() -> None:
    history = History(2, 2)
    history.append([5] * 6)
    assert history.propose(8) == Copy(start=5, length=1, match=5)
    history = History(2, 2)
    history.append([1, 2, 1, 2, 1])
    assert drafts(history, 8) == ([2, 1], 3)


def test_only_the_latest_occurrence_counts() -> None:
    history = History(2, 4)
    history.append([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4])
    assert history.occurrences() == [8, 4]
    assert history.propose(8) is None  # the latest occurrence matches 2 tokens; the one that matches 4 is older


def test_shorter_than_the_ngram_there_is_nothing() -> None:
    history = History(4, 4)
    assert history.propose(8) is None
    history.append([1, 1, 1])
    assert history.propose(8) is None
    history.append([1])
    assert history.propose(8) is None
    history.append([1])
    assert history.propose(8) == Copy(start=4, length=1, match=4)


def test_match_is_counted_to_64() -> None:
    history = History(1, 1)
    history.append([3] * 500)
    copy = history.propose(4)
    assert copy is not None and copy.match == 64


def test_the_largest_ngram_and_the_largest_token_ids() -> None:
    text = [INT32_MAX - i for i in range(70)]
    history = History(64, 64)
    history.append(np.array(text + text[:66], np.int32))
    assert drafts(history, 64) == (text[66:] + text[:60], 64)


def test_rewinding_brings_earlier_occurrences_back() -> None:
    history = History(2, 2)
    history.append([1, 2, 3, 1, 2, 4, 1, 2])
    assert drafts(history, 1) == ([4], 2)
    history.truncate(5)
    assert drafts(history, 1) == ([3], 2)
    history.append([9, 1, 2])
    assert drafts(history, 1) == ([9], 2)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, -1], r"token 1 is -1; allowed: 0 to 2147483647"),
        ([1, 2**31], r"item 1 is 2147483648; allowed: ints of 32 bits"),
        ([1, 2**80], r"allowed: ints of 32 bits"),
        ([1, 2.5], r"item 1 is 2.5"),
        (["a"], r"item 0 is 'a'"),
        (np.array([1, 2]), "one-dimensional C-contiguous int32 array"),
        (np.array([[1, 2]], np.int32), "one-dimensional C-contiguous int32 array"),
        (np.array([1, 2, 3, 4], np.int32)[::2], "one-dimensional C-contiguous int32 array"),
        (np.array([1.0], np.float32), "one-dimensional C-contiguous int32 array"),
        (np.array([3, -5], np.int32), r"token 1 is -5"),
        ("12", "allowed"),
        (None, "allowed"),
        (7, "allowed"),
    ],
)
def test_bad_tokens_are_refused_and_change_nothing(tokens: object, message: str) -> None:
    history = History(2, 2)
    history.append([1, 2, 3, 1, 2])
    with pytest.raises(ValueError, match=message):
        history.append(tokens)  # type: ignore[arg-type]
    assert history.tokens(0, len(history)) == [1, 2, 3, 1, 2]
    assert drafts(history, 3) == ([3, 1, 2], 2)


def test_bad_numbers_are_refused() -> None:
    for ngram, min_match in ((0, 4), (65, 65), (4, 3), (4, 65), (-1, 1)):
        with pytest.raises(ValueError, match="allowed"):
            History(ngram, min_match)
    history = History(2, 2)
    history.append([1, 2])
    with pytest.raises(ValueError, match="cannot truncate to 3 tokens; the history has 2"):
        history.truncate(3)
    with pytest.raises(ValueError, match="length is -1"):
        history.truncate(-1)
    with pytest.raises(ValueError, match="limit is -1"):
        history.propose(-1)
    for start, stop in ((0, 3), (2, 1), (-1, 1)):
        with pytest.raises(ValueError):
            history.tokens(start, stop)


def test_more_tokens_than_a_position_can_count_are_refused() -> None:
    history = History(4, 4)
    with pytest.raises(ValueError, match=r"history would hold 16777216 tokens; allowed: at most 16777215"):
        history.append(np.zeros(2**24, np.int32))
    assert len(history) == 0


def test_a_history_of_many_large_pages_is_searched_and_rewound() -> None:
    tokens = np.arange(700_000, dtype=np.int32)
    history = History(4, 4)
    for at in range(0, len(tokens), 100_000):
        history.append(tokens[at : at + 100_000])
    for start in (0, 123_456, 699_000):
        history.append(tokens[start : start + 200])
        assert drafts(history, 50) == (list(range(start + 200, start + 250)), 64)
        history.truncate(len(tokens))
    history.truncate(100)
    history.append([0, 1, 2, 3])
    assert drafts(history, 5) == ([4, 5, 6, 7, 8], 4)


@pytest.mark.parametrize("count", [1_000, 32_000, 128_000, 1_000_000])
@pytest.mark.parametrize("kind", ["distinct", "text", "one token"])
def test_at_most_16_bytes_per_token(count: int, kind: str) -> None:
    vocabulary = {"distinct": 50_000, "text": 8, "one token": 1}[kind]
    tokens = np.random.default_rng(0).integers(0, vocabulary, count).astype(np.int32)
    history = History(4, 8)
    history.append(tokens)
    assert history.bytes <= 16 * len(history)
    for start in range(0, count // 2, 997):  # grows past every reallocation, in pieces
        history.append(tokens[start : start + 997])
        assert history.bytes <= 16 * len(history)
