"""The drafter as a whole against the rules, and what its callers may rely on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve.lookup import _native
from trtserve.lookup.drafter import NO_COPY, Drafter, Proposal, SequenceDrafter
from trtserve.lookup.shared import SharedCache
from trtserve.settings import PromptLookup

from . import reference


def lookup(**changes: int) -> PromptLookup:
    return PromptLookup.model_validate({"policy": "window", **changes})


def drafter(**changes: int) -> Drafter:
    return Drafter(lookup(**changes))


def one(drafter: Drafter, sequence: SequenceDrafter, limit: int = 64) -> Proposal:
    return drafter.propose([sequence], [limit])[0]


def simulate(choose: Callable[[int], int], fault: str = "") -> bool:
    """Drive both drafters with the same choices; whether they ever differ. ``choose(n)`` picks from 0 to n - 1."""
    ngram, miss_backoff = 1 + choose(3), (0, 1, 4, 16)[choose(4)]
    max_drafts, min_match = 1 + choose(10), ngram + choose(3)
    real_cache, shared = None, None
    if choose(3):
        real_cache = SharedCache(mb=1, scopes=2, key_length=min_match)
        shared = reference.SharedCache(1 << 20, 2, min_match)
    real = Drafter(
        lookup(ngram=ngram, max_drafts=max_drafts, min_match=min_match, miss_backoff=miss_backoff), shared=real_cache
    )
    model = reference.Drafter(ngram, max_drafts, min_match, miss_backoff, shared, fault)
    alphabet = 1 + choose(4)

    def text(most: int) -> list[int]:
        return [choose(alphabet) for _ in range(choose(most + 1))]

    pairs: list[tuple[SequenceDrafter, reference.SequenceDrafter]] = []
    for _ in range(4 + choose(20)):
        if not pairs or (len(pairs) < 4 and choose(5) == 0):
            prompt, prediction, scope = text(12), text(12) if choose(2) else [], (None, "a", "b", "c")[choose(4)]
            pairs.append(
                (real.start(prompt, prediction=prediction, scope=scope), model.start(prompt, prediction, scope))
            )
        taking_part = [pair for pair in pairs if choose(4)]
        limits = [(0, 1, 3, 64)[choose(4)] for _ in taking_part]
        proposals = real.propose([sequence for sequence, _ in taking_part], np.array(limits, np.int32))
        for (sequence, other), limit, proposal in zip(taking_part, limits, proposals, strict=True):
            expected = model.propose(other, limit)
            if (proposal.tokens.tolist(), proposal.source, proposal.match) != expected:
                return True
            drafts, emitted = expected[0], text(3)
            if not drafts or choose(6) == 0:
                sequence.abandon()
                other.abandon()
            else:
                verified = len(drafts) if choose(4) else 1 + choose(len(drafts))
                accepted = (verified, 0, choose(verified + 1))[choose(3)]
                sequence.settle(accepted, verified)
                other.settle(accepted, verified)
                emitted = [*drafts[:accepted], *emitted]
            if other.prediction.tokens and choose(2):  # the prediction is right
                emitted = other.prediction.tokens[len(other.output) :][: 1 + choose(3)]
            sequence.observe(emitted)
            other.observe(emitted)
            if choose(8) == 0:
                length = choose(sequence.length + 1)
                sequence.rewind(length)
                other.rewind(length)
            state = (sequence.length, sequence.window, sequence.backing_off, sequence.rounds_skipped)
            window = other.window
            if state != (len(other.history.tokens), window.size, window.to_skip > 0, window.rounds_skipped):
                return True
        if choose(4) == 0:
            sequence, other = pairs.pop(choose(len(pairs)))
            store = choose(4) > 0
            real.finish(sequence, store=store)
            model.finish(other, store)
    return False


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_agrees_with_the_rules(data: st.DataObject) -> None:
    assert not simulate(lambda n: data.draw(st.integers(0, n - 1)))


def campaign(fault: str) -> bool:
    rng = random.Random(21)
    return any(simulate(rng.randrange, fault) for _ in range(600))


def test_campaign_finds_nothing_without_a_fault() -> None:
    assert not campaign("")


@pytest.mark.parametrize("fault", reference.DRAFTER_FAULTS)
def test_campaign_finds_every_fault(fault: str) -> None:
    assert campaign(fault)


TEXT = list(range(100, 130))


def test_a_copy_grows_with_its_success() -> None:
    d = drafter()
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    lengths = []
    at = 8
    for _ in range(3):
        proposal = one(d, s)
        assert proposal.source == "history" and proposal.match == at
        assert proposal.tokens.dtype == np.int32 and proposal.tokens.tolist() == TEXT[at : at + len(proposal.tokens)]
        lengths.append(len(proposal.tokens))
        s.settle(len(proposal.tokens))
        s.observe(TEXT[at : at + len(proposal.tokens) + 1])
        at += len(proposal.tokens) + 1
    assert lengths == [2, 4, 8]


def test_shorter_matches_than_min_match_are_no_copies() -> None:
    d = drafter()
    s = d.start([*TEXT, *TEXT[1:8]], scope=None)
    assert one(d, s) is NO_COPY
    s.observe(TEXT[8:9])
    assert one(d, s).tokens.tolist() == TEXT[9:11]


def test_the_effective_min_match_is_at_least_ngram() -> None:
    d = drafter(ngram=12, min_match=2)
    s = d.start([*TEXT, *TEXT[:11]], scope=None)
    assert one(d, s) is NO_COPY
    s.observe(TEXT[11:12])
    assert one(d, s).match == 12


def test_sources_are_asked_in_order() -> None:
    cache = SharedCache(mb=1, scopes=1, key_length=8)
    d = Drafter(lookup(), shared=cache)
    cache.insert("a", [*TEXT[:8], 1, 1])
    predicted, historic = [9, *TEXT[:8], 2, 2], [*TEXT[:8], 3, 3]
    cases = [([*historic, *TEXT[:8]], predicted, "history", 3), (TEXT[:8], predicted, "prediction", 9)]
    for prompt, prediction, source, token in cases:
        proposal = one(d, d.start(prompt, prediction=prediction, scope="a"))
        assert proposal.source == source and proposal.tokens.tolist()[0] == token
    for prediction in ([], [5]):
        s = d.start(TEXT[:7], prediction=prediction, scope="a")
        s.observe(TEXT[7:8])  # the output is no longer the prediction's beginning
        proposal = one(d, s)
        assert proposal.source == "shared" and proposal.tokens.tolist() == [1, 1]
    s = d.start(TEXT[:7], prediction=predicted, scope="a")
    s.observe(TEXT[7:8])
    assert one(d, s)[1:] == ("prediction", 8)


def test_a_prediction_is_proposed_from_its_start_and_followed_while_it_is_right() -> None:
    d = drafter()
    s = d.start([1, 2], prediction=TEXT, scope=None)
    first = one(d, s)
    assert first.tokens.tolist() == TEXT[:2] and first.source == "prediction" and first.match == 0
    s.settle(2)
    s.observe(TEXT[:3])
    second = one(d, s)
    assert second.tokens.tolist() == TEXT[3:7] and second.match == 3
    s.settle(1)
    s.observe([TEXT[3], 7])  # it parts from the prediction
    assert one(d, s) is NO_COPY
    s.observe(TEXT[10:18])  # and comes back: 8 tokens must match again
    third = one(d, s)
    assert third.tokens.tolist() == TEXT[18:20] and third.match == 8


def test_a_prediction_that_is_used_up_proposes_nothing() -> None:
    d = drafter()
    s = d.start([1, 2], prediction=TEXT[:3], scope=None)
    s.observe(TEXT[:3])
    assert one(d, s) is NO_COPY


def test_rewinding_to_the_prompt_starts_the_prediction_again() -> None:
    d = drafter()
    s = d.start([1, 2], prediction=TEXT, scope=None)
    s.observe([*TEXT[:4], 9])
    s.rewind(2)
    assert one(d, s).tokens.tolist() == TEXT[:2]


def test_abandoned_proposals_change_nothing() -> None:
    d = drafter()
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    first = one(d, s)
    s.abandon()
    assert s.window == 2 and not s.backing_off
    assert one(d, s).tokens.tolist() == first.tokens.tolist()
    s.abandon()
    s.abandon()  # with none waiting: nothing


def test_every_call_that_names_the_sequence_counts_as_a_round_skipped() -> None:
    d = drafter()
    s, other = (d.start([*TEXT, *TEXT[:8]], scope=None) for _ in range(2))
    for _ in range(3):
        while one(d, s) is NO_COPY:
            pass
        s.settle(0)
    assert s.backing_off and s.rounds_skipped == 1 + 2 and s.window == 1
    d.propose([other], [0])
    assert s.rounds_skipped == 3
    d.propose([s, other], [0, 0])
    d.propose([s], [8])
    d.propose([s], [8])
    assert s.rounds_skipped == 6 and s.backing_off
    d.propose([s], [0])
    assert s.rounds_skipped == 7 and not s.backing_off
    assert one(d, s).tokens.tolist() == TEXT[8:9]
    assert other.rounds_skipped == 0


def test_a_proposal_may_be_verified_in_part() -> None:
    d = drafter()
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    one(d, s)
    s.settle(1, verified=1)
    assert s.window == 4
    assert len(one(d, s).tokens) == 4
    s.settle(2, 3)
    assert s.window == 2


def test_limits_and_the_history_s_end_bound_a_copy() -> None:
    d = drafter()
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    assert len(one(d, s, 1).tokens) == 1
    s.abandon()
    assert one(d, s, 0) is NO_COPY
    end = d.start([7] * 20, scope=None)
    assert one(d, end).tokens.tolist() == [7]


def test_proposals_of_a_batch_do_not_share_memory() -> None:
    d = drafter()
    batch = [d.start([*TEXT, *TEXT[:8]], scope=None) for _ in range(5)] + [d.start([], scope=None)]
    rounds = []
    for _ in range(3):
        rounds += d.propose(batch, [2] * 6)
        for s in batch:
            s.abandon()
    expected = [([*TEXT[8:10]] if i % 6 < 5 else []) for i in range(18)]
    assert [p.tokens.tolist() for p in rounds] == expected
    rounds[0].tokens[:] = -1
    assert [p.tokens.tolist() for p in rounds[1:]] == expected[1:]


def test_many_rounds_of_a_large_batch() -> None:
    d = drafter(max_drafts=64, miss_backoff=0)
    batch = [d.start([*TEXT, *TEXT[:8]], scope=None) for _ in range(300)]
    kept = []
    for _ in range(4):
        kept.append(d.propose(batch, np.full(300, 2, np.int32)))
        for s in batch:
            s.abandon()
    assert all(p.tokens.tolist() == TEXT[8:10] for proposals in kept for p in proposals)
    assert d.propose([], []) == []


def test_finished_text_reaches_later_requests_of_its_scope_alone() -> None:
    cache = SharedCache(mb=1, scopes=4, key_length=8)
    d = Drafter(lookup(), shared=cache)
    s = d.start(TEXT[:12], scope="a")
    s.observe(TEXT[12:20])
    d.finish(s, store=True)
    assert cache.stats().documents == 1 and cache.stats().tokens == 20
    found = one(d, d.start(TEXT[:10], scope="a"))
    assert found.tokens.tolist() == TEXT[10:12] and found.source == "shared" and found.match == 10
    for scope in ("b", "", None):
        assert one(d, d.start(TEXT[:10], scope=scope)) is NO_COPY
    d.finish(d.start([*TEXT, 1], scope="a"), store=False)
    d.finish(d.start([*TEXT, 1], scope=None), store=True)
    assert cache.stats().documents == 1


def test_finishing_frees_the_memory_and_ends_the_sequence() -> None:
    d = drafter()
    s = d.start(np.arange(100_000, dtype=np.int32), prediction=TEXT, scope="a")
    assert s.bytes > 400_000 and not s.finished
    one(d, s)
    d.finish(s, store=True)
    assert s.bytes == 0 and s.length == 0 and s.finished
    calls: list[Callable[[], object]] = [
        lambda: d.finish(s, store=True),
        lambda: d.propose([s], [1]),
        lambda: s.observe([1]),
        lambda: s.settle(0),
        lambda: s.abandon(),
        lambda: s.rewind(0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="the sequence is finished"):
            call()


def test_a_sequence_outlives_its_drafter() -> None:
    s = drafter().start(TEXT, scope=None)
    s.observe([1, 2])
    assert s.length == 32


def test_settling_what_does_not_fit_is_refused() -> None:
    d = drafter()
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    with pytest.raises(ValueError, match="no proposal waits"):
        s.settle(0)
    one(d, s)
    for accepted, verified in ((3, None), (-1, None), (2, 1), (0, 0), (0, 3)):
        with pytest.raises(ValueError, match="allowed"):
            s.settle(accepted, verified)
    s.settle(2)
    assert s.window == 4
    with pytest.raises(ValueError, match="no proposal waits"):
        s.settle(1)


def test_a_batch_that_cannot_be_changes_nothing() -> None:
    d = drafter()
    s, t = (d.start([*TEXT, *TEXT[:8]], scope=None) for _ in range(2))
    stranger = drafter().start(TEXT, scope=None)
    waiting = d.start([*TEXT, *TEXT[:8]], scope=None)
    one(d, waiting)
    bad: list[tuple[object, object, str]] = [
        ([s, s], [1, 1], "item 1 is in the batch twice"),
        ([s, stranger], [1, 1], "another drafter's"),
        ([s, waiting], [1, 1], "item 1 has a proposal that was neither settled nor abandoned"),
        ([s, t], [1], "2 sequences and 1 limits"),
        ([s, t], [1, -1], "item 1: limit is -1"),
        ([s, None], [1, 1], "item 1 is not a SequenceDrafter"),
        ([s, "x"], [1, 1], "item 1 is not a SequenceDrafter"),
        ([s], None, "limits is"),
        ([s], np.array([1.5]), "limits is"),
    ]
    for sequences, limits, message in bad:
        with pytest.raises(ValueError, match=message):
            d.propose(sequences, limits)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        d.propose(None, [1])  # type: ignore[arg-type]
    assert [len(p.tokens) for p in d.propose([s, t], [8, 8])] == [2, 2]


def test_bad_tokens_are_refused_and_change_nothing() -> None:
    d = drafter()
    for prompt, prediction in (([-1], []), ([1], [-1]), (np.arange(3), []), ([1], np.ones((2, 2), np.int32))):
        with pytest.raises(ValueError, match="allowed"):
            d.start(prompt, prediction=prediction, scope=None)  # type: ignore[arg-type]
    s = d.start(TEXT, prediction=TEXT, scope=None)
    for tokens in ([1, -1], [2**31], None, "ab"):
        with pytest.raises(ValueError, match="allowed"):
            s.observe(tokens)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot truncate to 31 tokens; the history has 30"):
        s.rewind(31)
    with pytest.raises(ValueError, match="length is -1"):
        s.rewind(-1)
    assert s.length == 30 and one(d, s).tokens.tolist() == TEXT[:2]


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="policy is 'clever'; allowed: adaptive, window"):
        Drafter(lookup().model_copy(update={"policy": "clever"}))
    with pytest.raises(ValueError, match="key length is 4; these settings need 8"):
        Drafter(lookup(), shared=SharedCache(mb=1, scopes=1, key_length=4))


def is_refused(sequence: SequenceDrafter) -> bool:
    try:
        sequence.observe([1])
    except RuntimeError as error:
        assert "one thread calls it" in str(error)
        return True
    return False


def test_another_thread_gets_an_error_and_not_a_race() -> None:
    d = drafter()
    prompt = np.arange(8_000_000, dtype=np.int32)
    s = d.start(TEXT, scope=None)
    started: list[SequenceDrafter] = []
    thread = threading.Thread(target=lambda: started.append(d.start(prompt, scope=None)))
    thread.start()
    refused = 0
    while thread.is_alive():
        refused += is_refused(s)
    thread.join()
    assert refused and started[0].length == 8_000_000
    s.observe([1])


def test_native_classes_refuse_what_is_not_initialised() -> None:
    with pytest.raises(TypeError):
        _native.SequenceDrafter()
