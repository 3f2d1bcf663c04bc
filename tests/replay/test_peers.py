"""Other engines' rules, on texts whose answers can be read off."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.policies.adaptive import CELLS, FEATURES, KINDS, WEIGHTS
from benchmarks.policies.base import OneByOne
from benchmarks.policies.fit import fit, header
from benchmarks.policies.ngram import ModRule, NgramRule, PoolRule, SimpleRule
from benchmarks.policies.oracle import Oracle, best_lengths, longest_copies
from benchmarks.policies.suffix import FrequentRule, LongestRule, SuffixMatches, TrieRule
from benchmarks.traces.read import half, shipped
from trtserve.replay.core import Limits, replay
from trtserve.replay.policies import Draft
from trtserve.replay.traces import Trace


def drafted(rule: OneByOne, prompt: list[int], limit: int = 64) -> Draft:
    sequence = rule.start(Trace(tuple(prompt), (0,)))
    return rule.propose([sequence], [limit])[0]


TEXT = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 2, 3, 6, 9, 1, 2, 3]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (NgramRule("", longest=2, shortest=1, drafts=2), [4, 9]),
        (NgramRule("", longest=2, shortest=1, drafts=2, latest=True), [6, 9]),
        (NgramRule("", longest=3, shortest=1, drafts=2, latest=True), [5, 9]),
        (NgramRule("", longest=5, shortest=4, drafts=2, latest=True), [5, 9]),
        (NgramRule("", longest=5, shortest=5, drafts=2), []),
        (LongestRule("", drafts=3), [5, 9, 2]),
        (LongestRule("", drafts=3, shortest=5), []),
        (PoolRule("", shared=False), [4, 9, 1, 2, 3]),
    ],
)
def test_which_occurrence_is_copied(rule: OneByOne, expected: list[int]) -> None:
    assert list(drafted(rule, TEXT).tokens) == expected


def test_padded_rules_verify_all_their_rows() -> None:
    padded = NgramRule("", longest=3, shortest=2, drafts=8, latest=True, padded=True)
    assert drafted(padded, [1, 2, 3]).extra_rows == 8
    assert drafted(padded, [1, 2, 3, 1, 2]).extra_rows == 8
    assert drafted(PoolRule("", shared=False), [1, 2, 3]).extra_rows == 5


def test_limits_are_kept_by_all() -> None:
    text = [*range(40), *range(30)]
    for rule in (
        NgramRule("", longest=3, shortest=1, drafts=10),
        PoolRule("", shared=False),
        SimpleRule("", key=3),
        LongestRule("", drafts=16),
        FrequentRule(""),
    ):
        assert list(drafted(rule, text, 2).tokens) == [30, 31]


def test_simple_wants_as_many_tokens_behind_as_its_key_has() -> None:
    rule = SimpleRule("", key=2, drafts=3)
    assert list(drafted(rule, [7, 1, 2, 3, 4, 1, 2]).tokens) == [3, 4, 1]
    assert list(drafted(rule, [7, 1, 2, 1, 2]).tokens) == [1, 2]
    assert list(drafted(rule, [7, 1, 2, 2, 2]).tokens) == [], "one token follows, two are wanted"
    assert list(drafted(rule, [1, 2, 3, 4, 1, 2]).tokens) == [], "position 0 is never looked at"


def test_a_ratchet_only_shrinks() -> None:
    rule = SimpleRule("", key=1, drafts=4, ratchet=True)
    sequence = rule.start(Trace((7, 1, 2, 3, 4, 1), (0,)))
    first = rule.propose([sequence], [64])[0]
    assert list(first.tokens) == [2, 3, 4, 1]
    rule.settle(sequence, first, 1)
    rule.observe(sequence, [2, 9, 1])
    assert list(rule.propose([sequence], [64])[0].tokens) == [2]


def test_mod_chains_from_token_to_token_across_requests() -> None:
    rule = ModRule("", key=2, least=3, most=5)
    first = rule.start(Trace((1, 2, 3, 4, 5, 6), (0,)))
    assert list(rule.propose([first], [64])[0].tokens) == []
    second = rule.start(Trace((8, 1, 2), (0,)))
    assert list(rule.propose([second], [64])[0].tokens) == [3, 4, 5, 6]
    third = rule.start(Trace((8, 4, 5), (0,)))
    assert list(rule.propose([third], [64])[0].tokens) == [], "fewer than it wants"


def test_suffix_matches_are_those_of_a_plain_count() -> None:
    rng = random.Random(5)
    tokens = [rng.randrange(3) for _ in range(80)]
    matches = SuffixMatches()
    for end, token in enumerate(tokens, 1):
        matches.feed(token)
        matches.append(token)
        expected = [next((k for k in range(i) if tokens[i - 1 - k] != tokens[end - 1 - k]), i) for i in range(end)]
        assert matches.lengths.tolist() == expected


def test_a_pool_of_finished_texts_never_runs_into_the_next() -> None:
    rule = LongestRule("", drafts=4, shared=True)
    for text in ([1, 2, 3, 4], [7, 8]):
        sequence = rule.start(Trace(tuple(text), (0,)))
        rule.finish(sequence)
    assert list(drafted(rule, [5, 2, 3]).tokens) == [4]


def test_suffix_decoding_follows_the_more_frequent() -> None:
    text = [1, 2, 5, 9, 1, 2, 6, 8, 1, 2, 5, 7, 3, 1, 2]
    draft = drafted(FrequentRule("", factor=2.0), text)
    assert draft.tokens[0] == 5, "twice against once"
    assert len(draft.tokens) <= 4, "a factor of the match"
    assert list(drafted(FrequentRule(""), [1, 2, 3]).tokens) == []


def test_suffix_decoding_remembers_outputs_and_no_prompts() -> None:
    rule = FrequentRule("", shared=True)
    first = rule.start(Trace((1, 2, 3), (0,)))
    rule.observe(first, [4, 5, 6])
    rule.finish(first)
    assert list(drafted(rule, [8, 2]).tokens) == [], "the prompt is not in the tree"
    draft = drafted(rule, [8, 4, 5])
    assert (list(draft.tokens), draft.source) == ([6], "shared")


def test_the_trie_knows_no_prompt_and_always_verifies_twelve_rows() -> None:
    rule = TrieRule("")
    prompt = tuple(range(30))
    sequence = rule.start(Trace((*prompt, 5, 6), (0,)))
    draft = rule.propose([sequence], [64])[0]
    assert (list(draft.tokens), draft.extra_rows) == ([], 12)
    rule.observe(sequence, [7, 8, 9])
    other = rule.start(Trace((7, 8), (0,)))
    draft = rule.propose([other], [64])[0]
    assert draft.accepted([9]) == 1


def test_the_oracle_knows_the_longest_copies() -> None:
    rng = random.Random(2)
    for _ in range(20):
        text = [rng.randrange(4) for _ in range(40)]
        trace = Trace(tuple(text[:12]), tuple(text[12:]))
        expected = []
        for position in range(12, 40):
            lengths = (
                next((k for k in range(40 - position) if text[s + k] != text[position + k]), 40 - position)
                for s in range(position)
            )
            expected.append(min(max(lengths), 6))
        assert longest_copies(trace, [], 6) == expected


def test_the_oracle_s_lengths_are_the_fastest_of_all() -> None:
    copies = [2, 1, 0, 3, 2, 1, 0]

    def cost(n: int) -> float:
        return 1 + 0.4 * n

    def fastest(position: int) -> float:
        if position >= len(copies):
            return 0.0
        most = min(copies[position], len(copies) - position - 1)
        return min(cost(n) + fastest(position + n + 1) for n in range(most + 1))

    position, time = 0, 0.0
    chosen = best_lengths(copies, cost)
    while position < len(copies):
        time += cost(chosen[position])
        position += chosen[position] + 1
    assert time == pytest.approx(fastest(0))


def test_no_rule_beats_the_oracle() -> None:
    traces = [t for t in shipped(("written",)) if t.kind == "json_rewrite"][:3]

    def cost(n: int) -> float:
        return 1 + 0.05 * n

    def time(rule: OneByOne) -> float:
        return replay(traces, rule, limits=Limits(lone=16)).time(lambda batch, extra: cost(extra))

    best = time(Oracle(cost, most=16))
    assert best < min(time(NgramRule("", longest=2, shortest=1, drafts=10)), time(LongestRule("", drafts=16)))


def test_shipped_traces_are_what_they_say() -> None:
    traces = shipped()
    counts: dict[tuple[str, str], int] = {}
    for trace in traces:
        counts[trace.label, trace.kind] = counts.get((trace.label, trace.kind), 0) + 1
    assert {label for label, _ in counts} == {"written", "model", "prefix"}
    assert all(n >= 30 for (label, _), n in counts.items() if label == "model")
    assert len({t.kind for t in traces}) == 8
    halves = [half(t) for t in traces]
    assert 0.3 < sum(halves) / len(halves) < 0.7
    assert all(
        half(a) == half(b) for a, b in itertools.pairwise(traces) if (a.kind, a.group) == (b.kind, b.group) and a.group
    )


def test_shares_are_counted_from_traces() -> None:
    """A text that repeats without a fault: copies under way are worth nearly everything, and the header says so."""
    text = tuple(range(50, 110))
    priors = fit([Trace((1, *text, 2), text)] * 5)
    assert priors[12 * 8 + 7] > 980, "match over 48, run over 32"
    lines = header(priors).splitlines()
    assert lines[0].startswith("// Written by")
    values = [int(v) for line in lines if not line.startswith("//") for v in line.rstrip(",").split(",")]
    assert values == priors
    assert len(values) == CELLS + WEIGHTS
    weights = [values[i : i + len(FEATURES)] for i in range(CELLS, CELLS + WEIGHTS, len(FEATURES))]
    assert all(w >= 0 for of in weights for w, f in zip(of, FEATURES, strict=True) if f.startswith("context"))
    amends = 2 * KINDS.index("amend")
    assert weights[amends] == [1000 * (f == "share") for f in FEATURES], "where nothing was seen, as the shares say"
