"""The adaptive policy: the native one against its transcription, and what it promises."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.policies.adaptive import CELLS, WEIGHTS, Adaptive, divide_rows, worths
from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.lookup import _native
from trtserve.lookup.cost import verify_cost
from trtserve.lookup.drafter import Drafter, SequenceDrafter
from trtserve.lookup.shared import SharedCache, SharedWay
from trtserve.settings import PromptLookup
from trtserve.settings import SharedCache as SharedSettings

FREE = CostCurve(
    device="rows for nothing",
    points=tuple(CostPoint(batch=1, rows=r, context=0, seconds=1 + r * 1e-6) for r in (1, 65)),
)
STEEP = CostCurve(
    device="every row a step", points=tuple(CostPoint(batch=1, rows=r, context=0, seconds=float(r)) for r in (1, 65))
)
STEPPED = CostCurve(
    device="dear in fours",
    points=tuple(
        CostPoint(batch=b, rows=r, context=0, seconds=1 + b * (0.02 * r + 0.4 * (r // 4)))
        for b in (1, 4)
        for r in (1, 3, 4, 7, 8, 11, 12, 33)
    ),
)


def lookup(**changes: object) -> PromptLookup:
    return PromptLookup.model_validate({"policy": "adaptive", **changes})


def edited(text: list[int], rng: random.Random, alphabet: int, rate: float) -> list[int]:
    """A text with tokens left out, put in and changed."""
    out: list[int] = []
    for token in text:
        kind = rng.random()
        if kind < rate:
            continue
        if kind < 2 * rate:
            out.append(rng.randrange(alphabet))
        out.append(rng.randrange(alphabet) if kind > 1 - rate else token)
    return out


def agree_on(seed: int) -> None:
    """Both drafters through the same rounds, limits, abandoned drafts, observed tokens and rewinds."""
    rng = random.Random(seed)
    alphabet, ngram, most = rng.choice([3, 8, 30, 300]), rng.choice([1, 2, 3, 4, 4, 6]), rng.choice([1, 4, 16, 32])
    base = [rng.randrange(alphabet) for _ in range(rng.choice([5, 60, 150]))]
    prompt = base + [rng.randrange(alphabet) for _ in range(rng.randrange(20))]
    prediction = edited(base, rng, alphabet, 0.1) if rng.random() < 0.5 else []
    truth = edited(prediction or base * 2, rng, alphabet, 0.06)
    settings_ = lookup(ngram=ngram, max_drafts=most, shared_cache=SharedSettings(mb=1, scopes=2))
    cache = SharedCache.from_settings(settings_) if rng.random() < 0.5 else None
    if cache:
        cache.insert("s", edited(truth, rng, alphabet, 0.03) + [0] * (ngram + 1))
    curve = rng.choice([None, None, STEPPED, FREE])
    drafter = Drafter(settings_, shared=cache, cost=curve)

    def shared(tail: list[int], limit: int, most: int) -> list[SharedWay]:
        assert cache is not None
        return cache.ways("s", tail, limit, most)

    native = drafter.start(prompt, prediction=prediction, scope="s")
    plain = Adaptive(
        list(prompt),
        _native.shipped_priors(),
        ngram=ngram,
        prediction=prediction or None,
        shared=shared if cache else None,
    )
    cost = verify_cost(curve)
    done = 0
    while done < len(truth):
        limit = min(rng.choice([0, 1, 64, 64, 64]), len(truth) - done - 1)
        proposal = drafter.propose([native], [limit])[0]
        drafts, chances = plain.propose(min(limit, most))
        count = divide_rows([chances], cost.at)[0]
        assert proposal.tokens.tolist() == drafts[:count], f"seed {seed}, at {done}"
        assert chances == sorted(chances, reverse=True)
        accepted = 0
        while accepted < count and drafts[accepted] == truth[done + accepted]:
            accepted += 1
        if count and rng.random() < 0.1:
            native.abandon()
            accepted = 0
        elif count:
            native.settle(accepted)
        emitted = truth[done : done + accepted + 1]
        native.observe(emitted)
        plain.observe(emitted)
        done += accepted + 1
        if rng.random() < 0.02:
            length = rng.randrange(len(prompt) - 3, native.length + 1)
            native.rewind(length)
            plain.rewind(length)


@pytest.mark.parametrize("block", range(8))
def test_native_and_transcription_agree(block: int) -> None:
    for seed in range(12 * block, 12 * block + 12):
        agree_on(seed)


def decode(drafter: Drafter, sequence: SequenceDrafter, truth: list[int], limit: int = 64) -> list[tuple[int, int]]:
    """Emit ``truth``; (drafted, accepted) of every round."""
    rounds, done = [], 0
    while done < len(truth):
        drafts = drafter.propose([sequence], [min(limit, len(truth) - done - 1)])[0].tokens.tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == truth[done + accepted]:
            accepted += 1
        if drafts:
            sequence.settle(accepted)
        sequence.observe(truth[done : done + accepted + 1])
        done += accepted + 1
        rounds.append((len(drafts), accepted))
    return rounds


FILE = list(range(100, 300))


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("substitution", [*FILE[:80], 7, *FILE[81:]]),
        ("insertion", [*FILE[:80], 7, *FILE[80:]]),
        ("deletion", [*FILE[:80], *FILE[81:]]),
        ("a longer deletion", [*FILE[:80], *FILE[110:]]),
        ("a renamed token in two", [*FILE[:80], 7, 8, *FILE[81:]]),
    ],
)
def test_a_copy_is_resumed_after_an_edit(name: str, truth: list[int]) -> None:
    """The 200 tokens of a file with one edit: few rounds more than without any."""
    drafter = Drafter(lookup(max_drafts=16), cost=FREE)
    unedited = decode(drafter, drafter.start([1, *FILE, 2], scope=None), FILE)
    rounds = decode(drafter, drafter.start([1, *FILE, 2], scope=None), truth)
    assert len(rounds) <= len(unedited) + 4, name


def test_an_edit_made_again_is_drafted_within_a_copy() -> None:
    """Token 7 is renamed 8 each time it comes: after a few breaks the copy goes on through the rest of them."""
    file = [t for i in range(24) for t in (*range(100 + 9 * i, 109 + 9 * i), 7)]
    truth = [8 if t == 7 else t for t in file]
    drafter = Drafter(lookup(max_drafts=32), cost=FREE)
    sequence = drafter.start([1, *file, 2], scope=None)
    rounds = decode(drafter, sequence, truth)
    assert len(rounds) < 20, "a round for each of the 24 edits is not needed"
    late = [accepted for _, accepted in rounds[-4:-1]]
    assert min(late) > 10, "drafts reach past the next edit"


def test_a_token_is_worth_less_where_the_next_round_would_bring_it() -> None:
    """The same chance of acceptance: within a sure copy a row has to be cheap, where it ends it may cost more."""
    curve = CostCurve(
        device="line", points=tuple(CostPoint(batch=1, rows=r, context=0, seconds=1 + 0.1 * (r - 1)) for r in (1, 65))
    )
    cost = verify_cost(curve)
    assert _native.divide_rows([[0.2, 0.2]], cost) == [0], "the next round would go on with the copy"
    assert _native.divide_rows([[0.2, 0.0]], cost) == [1], "the token behind it would take a round"
    assert _native.divide_rows([[0.999, 0.998, 0.997, 0.5, 0.1]], cost) == [4]
    assert _native.divide_rows([[0.999, 0.998, 0.997, 0.1, 0.1]], cost) == [3]
    assert _native.divide_rows([[0.08, 0.0]], cost) == [0], "it saves less than its row costs"


def test_a_repeat_is_copied_past_the_history_s_end() -> None:
    drafter = Drafter(lookup(max_drafts=16), cost=FREE)
    sequence = drafter.start([5, 6, 7, 5, 6, 7, 5, 6, 7], scope=None)
    rounds = decode(drafter, sequence, [5, 6, 7] * 20)
    assert max(accepted for _, accepted in rounds) > 9, "more than the history had"


def test_the_prediction_is_followed_from_its_first_token() -> None:
    drafter = Drafter(lookup(max_drafts=8), cost=FREE)
    prediction = list(range(50, 90))
    sequence = drafter.start([1, 2, 3], prediction=prediction, scope=None)
    first = drafter.propose([sequence], [8])[0]
    assert first.tokens.tolist() == prediction[:8]
    assert (first.source, first.match) == ("prediction", 0)


@pytest.mark.parametrize("seed", range(12))
def test_a_prediction_is_as_good_a_source_as_the_prompt(seed: int) -> None:
    """Lines of few words, edited: short matches decide, and copies break and are taken up again."""
    rng = random.Random(seed)
    file = [rng.randrange(10, 40) for _ in range(200)]
    truth = edited(file, rng, 40, 0.02)
    task = [rng.randrange(1, 10) for _ in range(8)]
    drafter = Drafter(lookup(max_drafts=32))
    in_prompt = decode(drafter, drafter.start([*file, 0, *task], scope=None), truth)
    predicted = decode(drafter, drafter.start(task, prediction=file, scope=None), truth)
    assert len(predicted) <= len(in_prompt) < len(truth) / 2


def test_a_copy_from_the_prediction_ends_with_it() -> None:
    """Behind the prediction stands the prompt: nothing is copied, or matched, from one into the other."""
    drafter = Drafter(lookup(max_drafts=16), cost=FREE)
    sequence = drafter.start([4, 5, 6, 7, 8, 9], prediction=[50, *range(60, 80), 1, 2, 3], scope=None)
    sequence.observe([51, *range(60, 75)])
    proposal = drafter.propose([sequence], [16])[0]
    assert proposal.tokens.tolist() == [75, 76, 77, 78, 79, 1, 2, 3]
    assert (proposal.source, proposal.match) == ("prediction", 15)
    sequence.settle(8)
    sequence.observe([75, 76, 77, 78, 79, 1, 2, 3, 4, 5])
    proposal = drafter.propose([sequence], [16])[0]
    assert (proposal.source, proposal.match) == ("history", 2)


def test_the_prediction_is_no_part_of_the_length_and_is_not_stored() -> None:
    cache = SharedCache(1, 1, 4)
    drafter = Drafter(lookup(), shared=cache)
    sequence = drafter.start([1, 2, 3, 4, 5, 6], prediction=FILE, scope="a")
    sequence.observe([7, 8])
    assert sequence.length == 8
    with pytest.raises(ValueError, match="cannot truncate to 9 tokens; the history has 8"):
        sequence.rewind(9)
    sequence.rewind(7)
    assert sequence.length == 7
    drafter.finish(sequence, store=True)
    assert cache.stats().tokens == 7
    assert not cache.ways("a", FILE[:20], 8, 4)


def test_a_copy_from_the_shared_cache_is_resumed_too() -> None:
    settings_ = lookup(max_drafts=16, shared_cache=SharedSettings(mb=1, scopes=1))
    cache = SharedCache.from_settings(settings_)
    drafter = Drafter(settings_, shared=cache, cost=FREE)
    first = drafter.start([1, 2, 3, 4], scope="a")
    first.observe(FILE)
    drafter.finish(first, store=True)
    rounds = decode(drafter, drafter.start([1, 2, 3, 4], scope="a"), [*FILE[:50], 7, *FILE[51:]])
    assert len(rounds) < 25
    assert len(decode(drafter, drafter.start([1, 2, 3, 4], scope="b"), FILE)) == len(FILE), "another scope has none"


def test_limits_are_kept() -> None:
    drafter = Drafter(lookup(max_drafts=5), cost=FREE)
    for limit in (0, 1, 3, 5, 64):
        sequence = drafter.start([*FILE, *FILE[:30]], scope=None)
        assert len(drafter.propose([sequence], [limit])[0].tokens) == min(limit, 5)
        if limit:
            sequence.abandon()


def test_nothing_is_drafted_where_no_row_pays() -> None:
    drafter = Drafter(lookup(), cost=STEEP)
    sequence = drafter.start([*FILE, *FILE[:30]], scope=None)
    assert decode(drafter, sequence, FILE[30:60]) == [(0, 0)] * 30
    assert sequence.rounds_skipped > 0


def test_equal_calls_give_equal_drafts() -> None:
    """Also with another sequence between them: sequences know nothing of each other."""
    rng = random.Random(3)
    base = [rng.randrange(6) for _ in range(300)]
    truth = edited(base, rng, 6, 0.05)
    drafters = [Drafter(lookup()) for _ in range(2)]
    other = drafters[1].start(base[::-1], scope=None)
    runs = []
    for drafter in drafters:
        sequence = drafter.start(base, scope=None)
        if drafter is drafters[1]:
            decode(drafter, other, base[:40])
        runs.append(decode(drafter, sequence, truth))
    assert runs[0] == runs[1]


def test_a_sequence_learns_what_its_copies_are_worth() -> None:
    """A text that breaks every copy after one token: drafts become rare, though every one looked like the last."""
    rng = random.Random(1)
    dear = CostCurve(
        device="line", points=tuple(CostPoint(batch=1, rows=r, context=0, seconds=1 + 0.15 * (r - 1)) for r in (1, 65))
    )
    drafter = Drafter(lookup(max_drafts=16), cost=dear)
    key = [1, 2, 3, 4]
    prompt = [t for i in range(30) for t in (*key, 100 + i)]
    truth = [t for i in range(60) for t in (*key, 1000 + rng.randrange(1000))]
    rounds = decode(drafter, drafter.start(prompt, scope=None), truth)
    wasted = [drafted - accepted for drafted, accepted in rounds]
    assert sum(wasted[-40:]) < 0.7 * sum(wasted[:40])


@given(
    chances=st.lists(
        st.lists(st.floats(0.01, 1), max_size=7).map(lambda c: sorted(c, reverse=True)), min_size=1, max_size=6
    ),
    batch_cost=st.floats(0.001, 1),
)
@settings(max_examples=200, deadline=None)
def test_rows_are_divided_as_transcribed(chances: list[list[float]], batch_cost: float) -> None:
    curve = verify_cost(
        CostCurve(
            device="line",
            points=tuple(
                CostPoint(batch=b, rows=r, context=0, seconds=1 + batch_cost * b * (r - 1))
                for b in (1, 8)
                for r in (1, 9)
            ),
        )
    )
    taken = _native.divide_rows(chances, curve)
    assert taken == divide_rows(chances, curve.at)
    assert _native.divide_rows(chances, curve, 3) == divide_rows(chances, curve.at, 3)
    assert _native.divide_rows(chances, curve, 3) == divide_rows([*chances, [], [], []], curve.at)[: len(chances)]
    assert all(0 <= n <= max(len(of) - 1, 0) for n, of in zip(taken, chances, strict=True))


def gain(chances: list[list[float]], counts: list[int], cost: _native.VerifyCost) -> float:
    """Steps that a batch saves with the first ``counts`` of its drafts."""
    worth = worths(len(chances), cost.at)
    saved = 0.0
    for of, count in zip(chances, counts, strict=True):
        for chance, behind in itertools.pairwise(of[: count + 1]):
            saved += chance * worth[int(behind / chance * 256 + 0.5)]
    return saved / len(chances) - cost.at(len(chances), sum(counts)) + 1


@pytest.mark.parametrize("curve", [None, STEPPED])
def test_drafts_that_are_never_made_would_not_have_paid(curve: CostCurve | None) -> None:
    """The native policy stops where no row could pay: a batch gains no less than from all drafts, made by the other."""
    cost, rng = verify_cost(curve), random.Random(5)
    for _ in range(40):
        batch = rng.choice([2, 3, 8])
        drafter = Drafter(lookup(), cost=curve)
        texts = [[rng.randrange(rng.choice([4, 30])) for _ in range(200)] for _ in range(batch)]
        texts = [text + edited(text[:60], rng, 30, 0.02) for text in texts]
        chances = [Adaptive(text, _native.shipped_priors()).propose(32)[1] for text in texts]
        sequences = [drafter.start(text, scope=None) for text in texts]
        ours = [len(p.tokens) for p in drafter.propose(sequences, [32] * batch)]
        assert gain(chances, ours, cost) >= gain(chances, divide_rows(chances, cost.at), cost) - 1e-9


def test_a_row_costs_what_it_does_in_the_whole_batch() -> None:
    """Where rows are free alone and dear in company, those beside who take no part count too."""
    curve = CostCurve(
        device="dear in company",
        points=tuple(
            CostPoint(batch=b, rows=r, context=0, seconds=1 + (b - 1) * (r - 1)) for b in (1, 8) for r in (1, 9)
        ),
    )
    drafter = Drafter(lookup(max_drafts=8), cost=curve)
    sequence = drafter.start([*FILE, *FILE[:60]], scope=None)
    assert len(drafter.propose([sequence], [8])[0].tokens) == 8
    sequence.abandon()
    assert len(drafter.propose([sequence], [8], others=7)[0].tokens) == 0
    with pytest.raises(ValueError, match="others is -1; allowed: 0 or more"):
        drafter.propose([sequence], [8], others=-1)


def test_a_batch_shares_its_rows() -> None:
    """Where rows are dear, the sequence that copies gets them and the one that guesses gets none."""
    curve = CostCurve(
        device="dear",
        points=tuple(
            CostPoint(batch=b, rows=r, context=0, seconds=b * (0.6 + 0.4 * r)) for b in (1, 2) for r in (1, 9)
        ),
    )
    drafter = Drafter(lookup(max_drafts=8), cost=curve)
    copying = drafter.start([*FILE, *FILE[:60]], scope=None)
    copying.observe(FILE[60:90])
    guessing = drafter.start([1, 9, 9, 9, 1, 8, 8, 1], scope=None)
    drafts = drafter.propose([copying, guessing], [8, 8])
    assert drafts[0].tokens.tolist() == FILE[90 : 90 + len(drafts[0].tokens)]
    assert len(drafts[0].tokens) > 0
    assert len(drafts[1].tokens) == 0


def test_cost_is_measured_relative_to_a_batch_without_drafts() -> None:
    points = [(1, 1, 1.0), (1, 3, 1.2), (1, 5, 1.1), (8, 1, 2.0), (8, 5, 6.0), (32, 1, 5.0)]
    cost = verify_cost(
        CostCurve(
            device="",
            points=tuple(CostPoint(batch=b, rows=r, context=c, seconds=s) for b, r, s in points for c in (0, 9)),
        )
    )
    assert cost.at(1, 0) == cost.at(8, 0) == cost.at(4, 0) == 1
    assert cost.at(1, 1) == pytest.approx(1.1)
    assert cost.at(1, 2) == pytest.approx(1.2)
    assert cost.at(1, 4) == pytest.approx(1.2), "never falls"
    assert cost.at(8, 8) == pytest.approx(1.5)
    assert cost.at(8, 64) == pytest.approx(5), "past the last one on the last line"
    assert cost.at(32, 32) == cost.at(8, 8), "a batch without measured drafts costs like the largest with them"
    assert 1 < cost.at(4, 4) < cost.at(8, 8)
    assert verify_cost(None).at(4, 2) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("batches", "rows", "message"),
    [
        ([1], [], "1 batches and 0 lists"),
        ([2, 1], [[1, 2], [1, 2]], "ascend"),
        ([1], [[1.0]], "at least 2"),
        ([1], [[1.0, 0.5]], "must not fall"),
        ([1], [[0.0, 0.5]], "positive"),
    ],
)
def test_costs_that_make_no_sense_are_refused(batches: list[int], rows: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.VerifyCost(batches, rows)


def test_priors_are_checked() -> None:
    shipped = _native.shipped_priors()
    assert len(shipped) == CELLS + WEIGHTS
    assert all(1 <= p <= 999 for p in shipped[:CELLS])
    with pytest.raises(ValueError, match=f"3 values; allowed: {CELLS + WEIGHTS}"):
        Drafter(lookup(), priors=[1, 2, 3])
    with pytest.raises(ValueError, match="value 0 is 1000"):
        Drafter(lookup(), priors=[1000, *shipped[1:]])
    with pytest.raises(ValueError, match="is -32001; allowed: -32000 to 32000"):
        Drafter(lookup(), priors=[*shipped[:-1], -32001])


def test_a_shared_cache_has_the_policy_s_keys() -> None:
    assert (lookup().shared_key_length, lookup(policy="window").shared_key_length) == (4, 8)
    with pytest.raises(ValueError, match="key length is 8; these settings need 4"):
        Drafter(lookup(), shared=SharedCache(1, 1, 8))


def test_memory_counts_the_short_keys() -> None:
    drafter = Drafter(lookup())
    sequence = drafter.start(list(range(20_000)), scope=None)
    window = Drafter(lookup(policy="window")).start(list(range(20_000)), scope=None)
    assert window.bytes < sequence.bytes <= window.bytes + 3 * 4 * (1 << 13)
