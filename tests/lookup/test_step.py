"""A round in one call: the same as its calls one by one, and what it refuses changes nothing."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve.engine.protocol import SOURCES
from trtserve.lookup.drafter import Drafter, Drafts, SequenceDrafter
from trtserve.lookup.shared import SharedCache
from trtserve.settings import PromptLookup

TEXT = list(range(100, 130))


def lookup(**changes: object) -> PromptLookup:
    return PromptLookup.model_validate({"policy": "window", **changes})


def listed(drafts: Drafts) -> list[tuple[list[int], str | None, int]]:
    """Per sequence what a proposal would hold."""
    return [
        (drafts.tokens[b, :count].tolist(), SOURCES[source - 1] if source else None, match)
        for b, (count, source, match) in enumerate(
            zip(drafts.counts.tolist(), drafts.sources.tolist(), drafts.matches.tolist(), strict=True)
        )
    ]


def one_by_one(
    drafter: Drafter,
    sequences: list[SequenceDrafter],
    drafted: list[list[int]],
    accepted: list[int],
    emitted: list[list[int]],
    limits: list[int],
    others: int,
) -> list[tuple[list[int], str | None, int]]:
    for sequence, waiting, count, tokens in zip(sequences, drafted, accepted, emitted, strict=True):
        if waiting and count >= 0:
            sequence.settle(count)
        else:
            sequence.abandon()
        sequence.observe(tokens)
    part = [b for b, limit in enumerate(limits) if limit >= 0]
    others += len(sequences) - len(part)
    proposals = drafter.propose([sequences[b] for b in part], [limits[b] for b in part], others)
    found: list[tuple[list[int], str | None, int]] = [([], None, 0)] * len(sequences)
    for b, proposal in zip(part, proposals, strict=True):
        found[b] = (proposal.tokens.tolist(), proposal.source, proposal.match)
    return found


def state(sequence: SequenceDrafter) -> tuple[int, int, bool, int]:
    return sequence.length, sequence.window, sequence.backing_off, sequence.rounds_skipped


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["adaptive", "window"]))
def test_a_step_is_the_calls_it_stands_for(data: st.DataObject, policy: str) -> None:
    def choose(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    rule = lookup(policy=policy, ngram=1 + choose(3), min_match=1 + choose(4), max_drafts=1 + choose(9), miss_backoff=4)
    alphabet = 1 + choose(4)

    def text(most: int) -> list[int]:
        return [choose(alphabet) for _ in range(choose(most + 1))]

    drafters = [Drafter(rule, shared=SharedCache(1, 2, rule.shared_key_length)) for _ in range(2)]
    pairs: list[tuple[SequenceDrafter, SequenceDrafter]] = []
    waiting: list[list[int]] = []  # drafts of the last round, by pair
    for _ in range(2 + choose(8)):
        while len(pairs) < 3 and (not pairs or choose(2)):
            prompt, prediction, scope = text(14), text(8) if choose(2) else [], (None, "a", "b")[choose(3)]
            first, second = (d.start(prompt, prediction=prediction, scope=scope) for d in drafters)
            pairs.append((first, second))
            waiting.append([])
        accepted = [choose(len(drafts) + 2) - 1 for drafts in waiting]
        emitted = [drafts[: max(n, 0)] + text(2) for drafts, n in zip(waiting, accepted, strict=True)]
        limits = [(-1, 0, 1, 3, 64)[choose(5)] for _ in pairs]
        others = (0, 1, 9)[choose(3)]
        form: Callable[[list[int]], object] = (list, tuple, lambda tokens: np.array(tokens, np.int32))[choose(3)]
        drafts = drafters[0].step(
            [a for a, _ in pairs],
            form(accepted),  # type: ignore[arg-type]
            [form(tokens) for tokens in emitted],  # type: ignore[misc]
            form(limits),  # type: ignore[arg-type]
            others,
        )
        found = listed(drafts)
        assert found == one_by_one(drafters[1], [b for _, b in pairs], waiting, accepted, emitted, limits, others)
        assert [state(a) for a, _ in pairs] == [state(b) for _, b in pairs]
        waiting = [tokens for tokens, _, _ in found]
        if choose(3) == 0:
            b = choose(len(pairs))
            store = bool(choose(2))
            for drafter, sequence in zip(drafters, pairs.pop(b), strict=True):
                drafter.finish(sequence, store=store)
            waiting.pop(b)


def test_a_step_s_arrays() -> None:
    d = Drafter(lookup(max_drafts=5))
    batch = [
        d.start([*TEXT, *TEXT[:8]], scope=None),
        d.start([1], scope=None),
        d.start([1], prediction=TEXT, scope=None),
    ]
    drafts = d.step(batch, [-1] * 3, [()] * 3, [64] * 3)
    assert drafts.tokens.shape == (3, 5)
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in drafts)
    assert listed(drafts) == [(TEXT[8:10], "history", 8), ([], None, 0), (TEXT[:2], "prediction", 0)]
    assert drafts.sources.tolist() == [1, 0, 2]


def test_steps_of_the_same_size_use_the_same_arrays() -> None:
    d = Drafter(lookup())
    batch = [d.start([*TEXT, *TEXT[:8]], scope=None) for _ in range(2)]
    first = d.step(batch, [-1, -1], [[], []], [8, 8])
    drafted = first.tokens[0, :2]
    second = d.step(batch, first.counts, [drafted, [7]], [8, 8])  # what it overwrites may be given to it
    assert second.tokens is first.tokens
    assert listed(second) == [(TEXT[10:14], "history", 10), ([], None, 0)]
    assert batch[0].length == 40
    third = d.step(batch[:1], [4], [TEXT[10:14]], [8])
    assert third.tokens is not first.tokens
    assert listed(third) == [(TEXT[14:22], "history", 14)]
    assert listed(second) == [(TEXT[10:14], "history", 10), ([], None, 0)]


def test_an_empty_step() -> None:
    drafts = Drafter(lookup()).step([], [], [], [])
    assert [array.shape for array in drafts] == [(0, 32), (0,), (0,), (0,)]


def test_a_limit_below_zero_keeps_a_sequence_out_of_the_drafts() -> None:
    d = Drafter(lookup())
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    assert d.step([s], [-1], [[]], [8]).counts.tolist() == [2]
    assert d.step([s], [0], [[]], [-1]).counts.tolist() == [0]
    assert s.backing_off and s.rounds_skipped == 0  # one round to skip after the miss, and this was none
    d.step([s], [-1], [[]], [0])
    assert s.rounds_skipped == 1 and not s.backing_off
    with pytest.raises(ValueError, match="no proposal waits"):
        s.settle(0)


def test_a_waiting_proposal_that_was_not_verified_is_abandoned() -> None:
    d = Drafter(lookup())
    s = d.start([*TEXT, *TEXT[:8]], scope=None)
    for _ in range(3):
        assert listed(d.step([s], [-1], [[]], [8])) == [(TEXT[8:10], "history", 8)]
    assert s.window == 2


def test_what_a_step_refuses_changes_nothing() -> None:
    d = Drafter(lookup())
    fresh, waiting = (d.start([*TEXT, *TEXT[:8]], scope=None) for _ in range(2))
    d.propose([waiting], [8])
    over = d.start(TEXT, scope=None)
    d.finish(over, store=False)
    stranger = Drafter(lookup()).start(TEXT, scope=None)
    both, none, right, limits = [fresh, waiting], [-1, 2], [[1], TEXT[8:10]], [8, 8]
    bad: list[tuple[object, object, object, object, str]] = [
        (both, none, right, [8], "2 sequences and 1 limits"),
        (both, [-1], right, limits, "2 sequences, 1 counts of accepted drafts and 2 lists"),
        (both, none, [[1]], limits, "2 sequences, 2 counts of accepted drafts and 1 lists"),
        (both, [-1, 3], right, limits, "item 1: accepted is 3; allowed: 0 to 2"),
        (both, [-1, -2], right, limits, "item 1: accepted is -2; allowed: -1 or more"),
        (both, [1, 2], right, limits, "item 0: no proposal waits"),
        (both, none, right, [8, -2], "item 1: limit is -2; allowed: -1 or more"),
        (both, none, [[1], [2, -5]], limits, "item 1: token 1 is -5"),
        (both, none, [[1], [2, 2**31]], limits, "item 1 is 2147483648"),
        (both, none, [[1], ["x"]], limits, "ints of 32 bits"),
        (both, none, [[1], np.zeros(2)], limits, "int32 array"),
        (both, none, [[1], np.zeros(2, np.int64)], limits, "int32 array"),
        (both, none, [[1], np.zeros((1, 2), np.int32)], limits, "int32 array"),
        (both, none, [[1], np.zeros(4, np.int32)[::2]], limits, "int32 array"),
        (both, none, [[1], None], limits, "int32 array"),
        (both, none, np.zeros((2, 1), np.int32), limits, "a list or tuple of tokens for each sequence"),
        (both, none, None, limits, "a list or tuple of tokens for each sequence"),
        (both, np.array([-1.0, 2.0]), right, limits, "accepted is"),
        (both, None, right, limits, "accepted is"),
        (both, none, right, np.array([8, 8]), "limits is"),
        ([fresh, over], [-1, -1], right, limits, "the sequence is finished"),
        ([fresh, stranger], [-1, -1], right, limits, "another drafter's"),
        ([fresh, fresh], [-1, -1], right, limits, "item 1 is in the batch twice"),
        ([fresh, "x"], [-1, -1], right, limits, "item 1 is not a SequenceDrafter"),
        (["x"], [-1], [[1]], [8], "item 0 is not a SequenceDrafter"),
    ]
    for sequences, accepted, emitted, most, message in bad:
        with pytest.raises(ValueError, match=message):
            d.step(sequences, accepted, emitted, most)  # type: ignore[arg-type]
        assert (fresh.length, waiting.length, waiting.window) == (38, 38, 2)
    with pytest.raises(ValueError, match="others is -1; allowed: 0 or more"):
        d.step(both, none, right, limits, -1)
    with pytest.raises(TypeError):
        d.step(None, [], [], [])  # type: ignore[arg-type]
    assert listed(d.step(both, none, right, limits)) == [([], None, 0), (TEXT[10:14], "history", 10)]


def test_tokens_come_in_any_int32_buffer() -> None:
    d = Drafter(lookup())
    s = d.start(memoryview(array("i", TEXT)), scope=None)  # type: ignore[arg-type]
    read_only = np.array(TEXT[:8], np.int32)
    read_only.flags.writeable = False
    drafts = d.step([s], np.array([-1], np.int32), [read_only], np.array([8], np.int32))
    assert listed(drafts) == [(TEXT[8:10], "history", 8)]
    for wrong in (array("I", [1]), array("h", [1]), b"1234", np.zeros(1, ">i4"), np.array(1, np.int32)):
        with pytest.raises(ValueError, match="int32 array"):
            s.observe(wrong)  # type: ignore[arg-type]
    assert s.length == 38


def is_refused(drafter: Drafter, sequence: SequenceDrafter) -> bool:
    try:
        drafter.step([sequence], [-1], [[]], [0])
    except RuntimeError as error:
        assert "one thread calls it" in str(error)
        return True
    return False


def test_a_step_runs_without_the_gil_and_refuses_other_threads() -> None:
    d = Drafter(lookup())
    batch = [d.start(TEXT, scope=None) for _ in range(2)]
    waiting = d.start(TEXT, scope=None)
    emitted = [np.arange(4_000_000, dtype=np.int32)] * 2
    thread = threading.Thread(target=d.step, args=(batch, [0, 0], emitted, [0, 0]))
    thread.start()
    refused = sum(is_refused(d, waiting) for _ in iter(thread.is_alive, False))
    thread.join()
    assert refused and [s.length for s in batch] == [4_000_030] * 2
    assert not is_refused(d, waiting)
