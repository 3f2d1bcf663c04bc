"""The shared cache: bounded, partitioned by scope, deterministic, and equal to a literal model of its rules."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve.lookup import _native
from trtserve.lookup.shared import SharedCache, mb_for, scope_name
from trtserve.settings import PromptLookup

from . import reference


def tiny(budget: int, scopes: int, key_length: int) -> _native.SharedCache:
    """A cache whose rings overwrite and whose table entries collide within a few documents."""
    return _native.SharedCache(budget, scopes, key_length, min_share_tokens=1)


def propose(cache: _native.SharedCache, scope: str, tail: list[int], limit: int) -> tuple[list[int], int] | None:
    tokens, match = cache.propose(scope, tail, limit)
    return (tokens, match) if tokens else None


def assert_same_counters(cache: _native.SharedCache, model: reference.SharedCache) -> None:
    expected = (model.bytes, model.budget, len(model.scopes), model.evictions, model.documents, model.tokens)
    assert cache.stats() == expected
    assert model.bytes <= model.budget


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, list[int], int | None]]:
    """Steps (scope, tokens, limit): insert without a limit, propose after the tokens with one."""
    token = st.integers(0, draw(st.integers(1, 2)))
    tokens = st.lists(token, min_size=1, max_size=60)
    step = st.tuples(st.sampled_from("abc"), tokens, st.none() | st.sampled_from([0, 1, 4, 64]))
    return draw(st.lists(step, max_size=25))


@settings(max_examples=250, deadline=None)
@given(scripts(), st.sampled_from([200, 512, 2048]), st.integers(1, 3), st.integers(1, 5))
def test_agrees_with_a_literal_model(
    script: list[tuple[str, list[int], int | None]], share: int, scopes: int, key_length: int
) -> None:
    cache, model = tiny(share * scopes, scopes, key_length), reference.SharedCache(share * scopes, scopes, key_length)
    for scope, tokens, limit in script:
        if limit is None:
            cache.insert(scope, tokens)
            model.insert(scope, tokens)
            assert_same_counters(cache, model)
        else:
            assert propose(cache, scope, tokens, limit) == model.propose(scope, tokens, limit)
            assert cache.ways(scope, tokens, limit + 1, 4) == model.ways(scope, tokens, limit + 1, 4)


def operations(
    seed: int, count: int, names: int, tagged: bool, alphabet: int = 3
) -> Iterator[tuple[int, list[int], int | None]]:
    """(scope, tokens, limit) as above. Tails come from recent documents of any scope, documents repeat old ones.

    Tagged documents of scope s hold only the tokens 3s, 3s + 1 and 3s + 2; others any below ``alphabet``.
    """
    rng = random.Random(seed)
    recent: list[list[int]] = [[0]]
    for _ in range(count):
        chance, scope = rng.random(), int(rng.random() ** 2 * names)  # some scopes are busier than others
        if chance < 0.08:
            base = 3 * scope if tagged else 0
            document = [base + int(rng.random() * alphabet) for _ in range(1 + int(rng.random() * 16))]
            if chance < 0.04:
                earlier = recent[int(rng.random() * len(recent))]
                if not tagged:
                    document = document[:6] + earlier[: 30 + int(rng.random() * 10)] + document[6:]
                elif earlier[0] // 3 == scope:
                    document = (earlier + document)[-70:]
            recent.append(document)
            if len(recent) > 40:
                recent.pop(0)
            yield scope, document, None
        else:
            text = recent[int(rng.random() * len(recent))]
            end = 1 + int(rng.random() * len(text))
            if tagged and chance < 0.6:
                scope = text[0] // 3
            yield scope, text[max(0, end - 9) : end], 1 + int(chance * 8)


@pytest.mark.parametrize(
    ("share", "scopes", "names", "key_length"), [(2048, 4, 12, 4), (512, 3, 5, 3), (8192, 8, 9, 5), (1000, 1, 3, 2)]
)
def test_a_quarter_of_a_million_operations_and_no_token_crosses_scopes(
    share: int, scopes: int, names: int, key_length: int
) -> None:
    cache, model = tiny(share * scopes, scopes, key_length), reference.SharedCache(share * scopes, scopes, key_length)
    seed, copies = share, 0
    for number, (scope, tokens, limit) in enumerate(operations(seed, 62_500, names, tagged=True)):
        name = f"scope {scope}"
        if limit is None:
            cache.insert(name, tokens)
            model.insert(name, tokens)
            continue
        found = cache.ways(name, tokens, limit, 4)
        assert found == model.ways(name, tokens, limit, 4)
        copies += len(found)
        assert all(token // 3 == scope for way in found for token in way[0])
        if number % 50 == 0:
            assert_same_counters(cache, model)
    assert_same_counters(cache, model)
    assert copies > 20_000
    assert model.evictions > 100


@pytest.mark.parametrize("key_length", [1, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64])
def test_keys_of_any_length_in_long_documents(key_length: int) -> None:
    """Documents that repeat themselves and each other for hundreds of tokens, with edits between."""
    rng = random.Random(key_length)
    cache, model = tiny(20_000, 1, key_length), reference.SharedCache(20_000, 1, key_length)
    text = [rng.randrange(40) for _ in range(300)]
    for _ in range(25):
        begin, end = sorted(rng.sample(range(len(text)), 2))
        document = text[begin:end] + [rng.randrange(40) for _ in range(rng.randrange(80))] + text[: rng.randrange(200)]
        document[rng.randrange(len(document))] = rng.randrange(40)
        cache.insert("a", document)
        model.insert("a", document)
        assert_same_counters(cache, model)
        for _ in range(8):
            tail = document[: rng.randrange(1, len(document))]
            assert cache.ways("a", tail, 8, 4) == model.ways("a", tail, 8, 4)
        text = (text + document)[-600:]


def campaign(fault: str) -> bool:
    """Whether random operations tell the native cache from a model with this fault."""
    cases = [(256, 2, 3, 5), (512, 3, 3, 5), (1024, 4, 3, 5), *[(65_536, 4, 200, 1)] * 3]
    for seed, (share, key_length, alphabet, names) in enumerate(cases):
        cache, model = tiny(share * 3, 3, key_length), reference.SharedCache(share * 3, 3, key_length, fault)
        for scope, tokens, limit in operations(seed, 6_000, names, tagged=False, alphabet=alphabet):
            if limit is None:
                cache.insert(str(scope), tokens)
                model.insert(str(scope), tokens)
            elif cache.ways(str(scope), tokens, limit, 4) != model.ways(str(scope), tokens, limit, 4):
                return True
        if cache.stats()[3:] != (model.evictions, model.documents, model.tokens):
            return True
    return False


def test_campaign_finds_nothing_without_a_fault() -> None:
    assert not campaign("")


@pytest.mark.parametrize("fault", reference.SHARED_FAULTS)
def test_campaign_finds_every_fault(fault: str) -> None:
    assert campaign(fault)


def test_proposals_depend_on_calls_alone() -> None:
    caches = [tiny(3 * 512, 3, 3) for _ in range(2)]
    for scope, tokens, limit in operations(4, 20_000, 6, tagged=False):
        if limit is None:
            for cache in caches:
                cache.insert(str(scope), tokens)
        else:
            assert caches[0].propose(str(scope), tokens, limit) == caches[1].propose(str(scope), tokens, limit)


def distinct(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).permutation(1 << 18)[:count]]


def test_a_resent_conversation_costs_its_new_turn_and_one_key() -> None:
    cache, text = SharedCache(mb=4, scopes=1, key_length=8), distinct(6_000)
    cache.insert("a", text[:2_000])
    assert cache.stats().tokens == 2_000
    cache.insert("a", text[:2_000])
    assert cache.stats().tokens == 2_000
    for turn in range(2_100, 6_001, 100):
        before = cache.stats().tokens
        cache.insert("a", text[:turn])
        assert cache.stats().tokens - before == 100 + 8
    assert cache.stats().documents == 42
    copy = cache.propose("a", text[:1_995], 32)
    assert copy is not None and copy.tokens == text[1_995:2_000]
    copy = cache.propose("a", text[:2_000], 32)
    assert copy is not None and copy.tokens == text[2_000:2_032]


def test_known_runs_shorter_than_32_stay_in_their_stretch() -> None:
    text = distinct(200)
    old, new = text[:100], text[100:]
    for run, extra in ((31, 31), (32, 8)):
        cache = SharedCache(mb=4, scopes=1, key_length=8)
        cache.insert("a", old)
        # 8 tokens of old text that nothing predicts here, then `run` that their keys predict, then new text
        document = new[:20] + old[: 8 + run] + new[20:40]
        cache.insert("a", document)
        assert cache.stats().tokens == 100 + 20 + 8 + extra + 20
        copy = cache.propose("a", new[:20], 64)
        expected = document[20 : 20 + 8 + run + 20] if run < 32 else document[20:28]
        assert copy is not None and copy.tokens == expected


def test_a_copy_never_runs_past_its_document() -> None:
    cache, text = SharedCache(mb=1, scopes=1, key_length=4), distinct(100)
    cache.insert("a", text[:10])
    cache.insert("a", text[10:20])
    copy = cache.propose("a", text[:6], 64)
    assert copy is not None and copy.tokens == text[6:10] and copy.match == 6
    assert cache.propose("a", text[:10], 64) is None
    assert cache.propose("a", text[8:12], 64) is None  # no key lies across two documents
    copy = cache.propose("a", text[5:16], 64)
    assert copy is not None and copy.tokens == text[16:20] and copy.match == 6


def test_documents_without_a_key_that_is_followed_are_ignored() -> None:
    cache = SharedCache(mb=1, scopes=1, key_length=8)
    for length in (0, 1, 8):
        cache.insert("a", list(range(length)))
    assert cache.stats() == (0, 1 << 20, 0, 0, 0, 0)
    cache.insert("a", list(range(9)))
    assert cache.stats()[2:] == (1, 0, 1, 9)


def test_overwritten_text_is_never_proposed() -> None:
    cache = SharedCache(mb=1, scopes=128, key_length=4)
    ring = cache.share[2]
    text = distinct(3 * ring)
    cache.insert("a", text)  # longer than the ring
    for end in range(4, len(text) - 1, 97):
        copy = cache.propose("a", text[:end], 8)
        alive = end - 4 >= len(text) - ring
        assert alive or copy is None
        if copy:
            assert copy.tokens == text[end : end + 8]


def test_one_scope_more_drops_the_least_recently_used_whole() -> None:
    cache, text = SharedCache(mb=1, scopes=2, key_length=4), distinct(40)
    cache.insert("a", text)
    cache.insert("b", text)
    assert cache.propose("a", text[:8], 4) is not None  # a use: b is now the older
    cache.insert("c", text)
    assert cache.stats().scopes == 2 and cache.stats().evictions == 1
    assert cache.propose("b", text[:8], 4) is None
    assert cache.propose("a", text[:8], 4) is not None
    cache.insert("b", text[20:])  # starts empty
    assert cache.propose("b", text[:8], 4) is None
    assert cache.propose("c", text[:8], 4) is None


def test_asking_for_an_unknown_scope_makes_none() -> None:
    cache = SharedCache(mb=1, scopes=1, key_length=4)
    cache.insert("a", distinct(20))
    assert cache.propose("b", distinct(8), 4) is None
    assert cache.stats().scopes == 1 and cache.propose("a", distinct(8), 4) is not None


@pytest.mark.parametrize(
    ("mb", "scopes", "share"),
    [(1, 4, (262_144, 16_384, 32_768)), (1, 128, (8_192, 512, 1_024)), (3, 4, (786_432, 32_768, 131_072))],
)
def test_a_share_is_divided_as_stated(mb: int, scopes: int, share: tuple[int, int, int]) -> None:
    cache = SharedCache(mb=mb, scopes=scopes, key_length=8)
    assert cache.share == share
    for number in range(scopes + 3):
        cache.insert(str(number), distinct(50))
        held = min(number + 1, scopes)
        assert cache.stats()[:3] == (held * (share[1] * 8 + share[2] * 4), mb << 20, held)


def test_a_share_of_fewer_than_1024_tokens_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"1048576 bytes over 200 scopes leave 5242 bytes a scope, 798 tokens .* at least 1024"
    ):
        SharedCache(mb=1, scopes=200, key_length=8)


@pytest.mark.parametrize(
    ("mb", "scopes", "key_length"),
    [(0, 4, 8), (65_537, 4, 8), (1, 0, 8), (1, 257, 8), (1, 4, 0), (1, 4, 65), (-1, 4, 8)],
)
def test_numbers_out_of_range_are_refused(mb: int, scopes: int, key_length: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        SharedCache(mb=mb, scopes=scopes, key_length=key_length)


def test_a_share_without_one_set_of_entries_is_refused() -> None:
    assert tiny(128, 1, 4).share_slots == 8
    with pytest.raises(ValueError, match="beside a table of 4 entries"):
        tiny(127, 1, 4)


def test_bad_arguments_store_nothing() -> None:
    cache = SharedCache(mb=1, scopes=1, key_length=4)
    for tokens in ([1, 2, 3, 4, 5, -6], np.arange(9), "text", None):
        with pytest.raises(ValueError, match="allowed"):
            cache.insert("a", tokens)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit is -1"):
        cache.propose("a", [1, 2, 3, 4], -1)
    assert cache.stats() == (0, 1 << 20, 0, 0, 0, 0)


def test_the_process_grows_by_no_more_than_the_budget() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    cache = SharedCache(mb=24, scopes=3, key_length=8)
    text = np.random.default_rng(0).integers(0, 1 << 30, 1 << 20).astype(np.int32)
    before = resident()
    for scope in "abcde":
        for _ in range(3):
            cache.insert(scope, text)
            text += 1
    assert cache.stats().tokens == 15 << 20
    assert resident() - before < (24 << 20) + (4 << 20)


WAITERS = """
import sys, threading, time
from trtserve.lookup.drafter import Drafter
from trtserve.lookup.shared import SharedCache
from trtserve.settings import PromptLookup

cache, text = SharedCache(1, 2, 4), list(range(100))
cache.insert("a", text)
drafter = Drafter(PromptLookup(), shared=cache)
one, other, last = (drafter.start(text[:9], scope="a") for _ in range(3))
calls = {
    "insert": lambda: cache.insert("a", text),
    "propose": lambda: cache.propose("a", text[:9], 4),
    "ways": lambda: cache.ways("a", text[:9], 4, 4),
    "scopes": cache.scopes,
    "stats": cache.stats,
    "save": lambda: cache.save("a"),
    "a lone sequence's round": lambda: drafter.propose([one], [4]),
    "its step": lambda: drafter.step([other], [-1], [[9]], [4]),
    "its end": lambda: drafter.finish(last, store=True),
}
for name, call in calls.items():
    begun, done = threading.Event(), threading.Event()

    def wait():
        begun.set()
        call()
        done.set()

    def hold():
        thread.start()
        begun.wait()
        for _ in range(20):  # each time the other thread, and it alone, may run
            time.sleep(0.001)
        assert not done.is_set(), name
        return name

    thread = threading.Thread(target=wait)
    assert cache.native.locked(hold) == name
    thread.join()
    assert done.is_set(), name
print("all", len(calls))
"""


def test_a_thread_that_waits_for_the_cache_holds_up_no_other() -> None:
    """The thread that has the lock runs Python: with the GIL held by one that waits it would never get further."""
    done = subprocess.run([sys.executable, "-c", WAITERS], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["all", "9"], done.stderr


def test_statistics_may_be_read_while_another_thread_inserts() -> None:
    cache, text = SharedCache(mb=8, scopes=2, key_length=8), np.array(distinct(200_000), np.int32)

    def insert() -> None:
        for number in range(20):
            cache.insert(str(number % 3), text)

    thread = threading.Thread(target=insert)
    thread.start()
    while thread.is_alive():
        assert cache.stats().bytes <= 8 << 20
    thread.join()
    assert cache.stats().documents == 20


def test_scope_names_differ_where_parts_differ() -> None:
    parts = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "b", ""), ("1:a", "b"), ("1:a1:b",)]
    assert len({scope_name(*p) for p in parts}) == len(parts)


@pytest.mark.parametrize("tokens", [0, 1, 131_072, 131_073, 10_000_000])
def test_as_many_mb_as_tokens_need(tokens: int) -> None:
    assert SharedCache(mb_for(tokens), 1, 4).share[2] >= tokens


def test_ways_are_candidates_that_vote() -> None:
    cache = SharedCache(mb=1, scopes=1, key_length=4)
    for document in ([1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 5, 7], [8, 2, 3, 4, 5, 7, 7], [0, 0, 3, 4, 5, 8]):
        cache.insert("a", document)
    # 7 has followed 2 3 4 5 twice, 6 once, though after the longer match; 8 has only followed 4 5 and 5.
    assert cache.ways("a", [1, 2, 3, 4, 5], 8, 4) == [
        ([6], 5, 1, 2, False),
        ([7, 7], 4, 2, 1, True),
        ([8], 3, 1, 3, True),
    ]
    assert cache.propose("a", [1, 2, 3, 4, 5], 8) == ([6], 5)
    assert cache.propose("a", [7, 4, 5], 8) is None, "a copy spans the key length"
    assert [way.match for way in cache.ways("a", [7, 4, 5], 8, 2)] == [2, 2]
    assert cache.ways("b", [1, 2, 3, 4, 5], 8, 4) == []
    for limit, most in ((0, 1), (1025, 1), (1, -1)):
        with pytest.raises(ValueError, match="allowed"):
            cache.ways("a", [1], limit, most)


def test_text_in_use_is_written_again_before_it_grows_old() -> None:
    cache, text = SharedCache(mb=1, scopes=1, key_length=4), distinct(200)
    draw = np.random.default_rng(3)
    for _ in range(40):  # almost four times the ring
        cache.insert("a", text)
        assert cache.propose("a", text[:20], 8) is not None
        cache.insert("a", draw.integers(1 << 20, 1 << 30, 12_000, dtype=np.int32))
        copy = cache.propose("a", text[:20], 8)
        assert copy is not None and copy.tokens == text[20:28]
    assert cache.stats().tokens < 40 * 12_000 + 20 * 200


def test_made_from_settings() -> None:
    assert SharedCache.from_settings(PromptLookup()) is None
    settings = PromptLookup.model_validate({"ngram": 12, "min_match": 8, "shared_cache": {"mb": 2, "scopes": 3}})
    cache = SharedCache.from_settings(settings)
    assert cache is not None and cache.key_length == 12 and cache.stats().budget == 2 << 20


def test_chance_collisions_do_not_make_a_long_conversation_new() -> None:
    cache, text = SharedCache(mb=1, scopes=1, key_length=8), distinct(16_384)
    assert cache.share[1:] == (65_536, 131_072)
    for _ in range(4):
        cache.insert("a", text)
    assert cache.stats().tokens == len(text)
