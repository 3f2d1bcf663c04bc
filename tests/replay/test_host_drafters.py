"""Other engines' drafters whose cost on the host is measured: they find what their rules find."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.host_cost import (
    BATCHED,
    LONE,
    ONE_CALL,
    RESCAN,
    cost,
    drafters_table,
    measure,
    subjects,
    synthetic_text,
)
from benchmarks.host_drafters import Ours, OursInOneCall, longest_earliest, our_drafter, rescan
from benchmarks.policies.base import occurrence
from benchmarks.policies.ngram import NgramRule
from benchmarks.policies.suffix import FrequentRule
from trtserve.replay.core import Limits, replay
from trtserve.replay.traces import Trace


def texts(count: int) -> list[list[int]]:
    rng = random.Random(4)
    return [[rng.randrange(1 + i % 3) for _ in range(rng.randrange(1, 50))] for i in range(count)]


def assert_finds_the_longest(find: Callable[..., object]) -> None:
    for i, text in enumerate(texts(300)):
        shortest, longest = 1 + i % 3, 1 + i % 3 + i % 4
        rule = NgramRule("", longest=longest, shortest=shortest, drafts=8)
        (expected,) = rule.propose([rule.start(Trace(tuple(text), (0,)))], [64])
        found = find(np.array(text, np.int32), shortest, longest, 8)
        assert np.asarray(found).tolist() == list(expected.tokens), text


def test_the_search_that_is_compiled_finds_what_the_rule_finds() -> None:
    assert_finds_the_longest(longest_earliest)


def test_the_compiled_search_finds_what_the_rule_finds() -> None:
    pytest.importorskip("numba")
    assert_finds_the_longest(importlib.import_module("benchmarks.host_drafters").compiled())


def test_the_rescan_finds_the_latest_occurrence() -> None:
    for text in texts(200):
        if len(text) > 4:
            start = occurrence(text, text[-4:], latest=True)
            assert rescan(np.array(text, np.int32), 4, 8).tolist() == (text[start : start + 8] if start else [])


@pytest.mark.parametrize("policy", ["adaptive", "window"])
def test_ours_drafts_alike_in_both_forms(policy: str) -> None:
    prompt = synthetic_text(300)
    parts = Ours(our_drafter(policy), prompt)
    one, many = (OursInOneCall(our_drafter(policy), prompt, batch) for batch in (1, 3))
    for subject in (parts, one, many):
        subject.copying(20)
        subject.searching(synthetic_text(20, seed=1))
        subject.copying(5)
    # In one call the search for the next round is done with the last round's news; in parts it is still to come.
    lengths = [s.length for s in (*one.sequences, *many.sequences[:1])]
    assert lengths[0] == parts.sequence.length > 400
    assert len({s.length for s in many.sequences}) == 1


def test_every_drafter_is_measured_and_shown() -> None:
    names = (LONE, ONE_CALL, BATCHED, RESCAN)
    drafters = measure(300, names)
    assert set(names) <= set(drafters) <= set(subjects())
    found = cost(300, drafters)
    assert found["round_us"] == drafters[LONE]["copying_us"] > 0
    assert found["batch_round_us_per_sequence"] == drafters[BATCHED]["copying_us"] > 0
    assert found["rescan_us"] > 0 and drafters[RESCAN]["bytes_per_token"] is None
    assert found["bytes_per_token"] >= 15
    lines = drafters_table({300: drafters}).splitlines()
    assert lines[0] == "|  | 300 |"
    assert sum(line.startswith(f"| {LONE} |") for line in lines) == 4
    assert sum(line.startswith(f"| {RESCAN} |") for line in lines) == 2


def test_suffix_decoding_s_own_package_agrees_with_its_rule() -> None:
    arctic = importlib.import_module("benchmarks.policies.arctic")
    if arctic.installed() is None:
        pytest.skip("arctic-inference is not installed")
    rng = random.Random(2)
    words = [[rng.randrange(40) for _ in range(rng.randrange(3, 9))] for _ in range(12)]
    traces = [
        Trace(*(tuple(t for _ in range(n) for t in rng.choice(words)) for n in (30, 20)))  # prompt, output
        for _ in range(8)
    ]
    for shared in (False, True):
        rounds = [
            replay(traces, rule, limits=Limits(64, 64, 64)).rounds
            for rule in (FrequentRule("", shared=shared), arctic.ArcticRule("", shared=shared))
        ]
        assert abs(rounds[0] - rounds[1]) <= 0.02 * rounds[1]
