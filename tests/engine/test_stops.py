"""Stop strings and the text stream, apart from any engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtserve.engine.emit import TextStream
from trtserve.engine.stops import StopMatcher

from .toy import ToyDecoder, ids

texts = st.text("ab", max_size=24)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def earliest(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The rule, by brute force: the first prefix that ends with a stop string, the longest of them."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return end, max(found, key=len)
    return None


def could_continue(text: str, stops: list[str]) -> int:
    return max((k for s in stops for k in range(len(s)) if text.endswith(s[:k])), default=0)


@given(texts, stop_lists, st.lists(st.integers(1, 5), max_size=24))
def test_matcher_agrees_with_brute_force_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher, read, found = StopMatcher(stops), 0, None
    cuts = [*cuts, len(text)]
    while read < len(text) and found is None:
        piece = text[read : read + cuts.pop(0)]
        found = matcher.feed(piece)
        if found is None:
            read += len(piece)
            assert matcher.held == could_continue(text[:read], stops)
        else:
            found = (read + found[0], found[1])
    assert found == earliest(text, stops)


@given(texts, stop_lists, st.integers(0, 10), st.booleans(), st.lists(st.integers(1, 4), max_size=24))
def test_stream_never_shows_part_of_a_stop_string(
    text: str, stops: list[str], first: int, include: bool, cuts: list[int]
) -> None:
    """``first``: characters that may not complete a stop string (min_tokens)."""
    stream = TextStream(ToyDecoder(), stops, include)
    whole = next(
        (
            (end, max(found, key=len))
            for end in range(first + 1, len(text) + 1)
            if (found := [s for s in stops if text[:end].endswith(s)])
        ),
        None,
    )
    want = text if whole is None else text[: whole[0] - (0 if include else len(whole[1]))]
    shown, at, stop = "", 0, None
    for at in range(len(text)):
        stop = stream.push(ids(text[at]), None, may_stop=at >= first)
        shown += "".join(t for t, _ in stream.take())
        assert want.startswith(shown)
        if stop is not None:
            break
    if stop is None:
        assert stream.finish() is None
    shown += "".join(t for t, _ in stream.take())
    assert shown == want
    assert stop == (None if whole is None else whole[1])


def test_longest_of_two_stops_complete_at_the_same_character() -> None:
    assert StopMatcher(["b", "ab"]).feed("xab") == (3, "ab")


def test_long_periodic_stop_string() -> None:
    stop = "ab" * 500 + "c"
    matcher = StopMatcher([stop])
    assert matcher.feed("ab" * 2000) is None
    assert matcher.held == 1000
    assert matcher.feed("c!") == (1, stop)


def test_a_stop_string_costs_what_is_read_of_the_text_and_not_what_it_is_long() -> None:
    matcher = StopMatcher(["ab" * 1_000_000 + str(i) for i in range(16)])
    assert matcher.feed("abac" + "ab" * 30) is None
    assert matcher.held == 60
    assert max(len(stop._table) for stop in matcher._stops) == 61


def test_spans_join_neighbours_of_one_source_and_cut_at_the_held_text() -> None:
    stream = TextStream(ToyDecoder(), ["STOP"])
    stream.push(ids("a"), "history")
    stream.push(ids("b"), "history")
    stream.push(ids("c"), None)
    stream.push(ids("ST"), "shared")
    assert stream.take() == (("ab", "history"), ("c", None))
    assert stream.take() == ()
    stream.push(ids("a"), None)
    assert stream.take() == (("ST", "shared"), ("a", None))


def test_stop_string_reaches_back_over_spans_of_several_sources() -> None:
    stream = TextStream(ToyDecoder(), ["aSTOP"])
    assert stream.push(ids("x"), None) is None
    assert stream.push(ids("a"), "history") is None
    assert stream.push(ids("ST"), "shared") is None
    assert stream.take() == (("x", None),)
    assert stream.push(ids("OP"), None) == "aSTOP"
    assert stream.take() == ()
    assert stream.finish() is None


@pytest.mark.parametrize("include", [False, True])
def test_text_after_the_stop_inside_one_token_is_dropped(include: bool) -> None:
    stream = TextStream(ToyDecoder(), ["fo"], include)
    assert stream.push(ids("foo("), None) == "fo"
    assert "".join(t for t, _ in stream.take()) == ("fo" if include else "")


def test_unfinished_character_comes_out_at_the_end_only() -> None:
    stream = TextStream(ToyDecoder())
    emoji = ids("😀")
    stream.push(emoji[:1], "history")
    assert stream.take() == ()
    stream.push(emoji[1:], None)
    assert stream.take() == (("😀", None),)
    stream.push(emoji[:1], None)
    assert stream.take() == ()
    stream.finish()
    assert stream.take() == (("\ufffd", None),)
