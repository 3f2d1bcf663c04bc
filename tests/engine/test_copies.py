"""Copies of a round by themselves: limits by batch, what may be verified, and whose failure it was."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.engine.copies import CopyRounds
from trtserve.engine.protocol import GenerationRequest, Scope
from trtserve.engine.rounds import Drafts
from trtserve.engine.sequence import Sequence
from trtserve.executor.base import ExecutorInfo
from trtserve.sampling import SamplingParams
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

VOCAB = 50
LOOKUP = PromptLookup(ngram=2, min_match=2, max_drafts=6, batch_max_drafts=3, max_seqs=3)
LIMITS = Limits(max_batch_size=4, max_seq_len=64, prefill_chunk=16)
INFO = ExecutorInfo(
    max_batch_size=4,
    max_seq_len=64,
    prefill_chunk=16,
    vocab_size=VOCAB,
    tiers=plan_tiers(LIMITS, Speculative(prompt_lookup=LOOKUP)),
    exact=True,
    device="cpu",
)


class Own:
    """One sequence's drafting state."""

    window, backing_off = 4, False

    def __init__(self, scope: str | None) -> None:
        self.scope, self.rounds_skipped = scope, 0
        self.told: list[Any] = []

    def observe(self, tokens: NDArray[np.int32]) -> None:
        self.told.append(("observe", tokens.tolist()))

    def settle(self, accepted: int) -> None:
        self.told.append(("settle", accepted))

    def abandon(self) -> None:
        self.told.append("abandon")


class Copy:
    def __init__(self, *tokens: Any) -> None:
        self.tokens = np.array(tokens, None if tokens else np.int32)
        self.source = "history" if tokens else None


class Scripted:
    """Proposes to each sequence what ``says`` has for it, cut to its limit unless told otherwise."""

    def __init__(self) -> None:
        self.says: dict[int, Any] = {}
        self.limits: list[list[int]] = []
        self.finished: list[tuple[Own, bool]] = []
        self.obey = True

    def start(self, prompt: NDArray[np.int32], *, prediction: NDArray[np.int32], scope: str | None) -> Own:
        own = Own(scope)
        own.prompt = int(prompt[0])  # type: ignore[attr-defined]
        return own

    def propose(self, sequences: Tokens[Any], limits: NDArray[np.int32], others: int) -> list[Copy]:
        self.limits.append(limits.tolist())
        made = []
        for own, limit in zip(sequences, limits, strict=True):
            said = self.says.get(own.prompt, ())
            if isinstance(said, Exception):
                raise said
            own.rounds_skipped += not said
            made.append(Copy(*(said[:limit] if self.obey else said)))
        return made

    def finish(self, sequence: Own, *, store: bool) -> None:
        self.finished.append((sequence, store))


def rounds_of(drafter: Scripted | None, lookup: PromptLookup | None = LOOKUP, named: bool = True) -> CopyRounds:
    return CopyRounds(drafter, lookup, INFO, (lambda scope: f"of {scope.tenant}") if named else None)  # type: ignore[arg-type]


def begin(rounds: CopyRounds, *firsts: int, budget: int = 20, **request: Any) -> list[Sequence]:
    made = []
    for first in firsts:
        asked = GenerationRequest((first, 1), SamplingParams(), Scope("t"), **request)
        made.append(Sequence(asked, np.array([first, 1], np.int32), np.empty(0, np.int32), budget))
        rounds.start(made[-1])
    return made


def tokens(drafts: list[Drafts | None]) -> list[list[int] | None]:
    return [None if d is None else d.tokens.tolist() for d in drafts]


@pytest.mark.parametrize(("batch", "most"), [(1, 6), (2, 3), (3, 3), (4, 0)])
def test_the_batch_decides_how_long_a_copy_may_be(batch: int, most: int) -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    sequences = begin(rounds, *range(2, 2 + batch))
    drafter.says = {first: tuple(range(10, 20)) for first in range(2, 2 + batch)}
    assert rounds.most_drafts(batch) == most
    assert [len(d or ()) for d in tokens(rounds.draft(sequences))] == [most] * batch


def test_the_budget_leaves_room_for_the_models_own_token() -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    drafter.says = {2: (10,) * 9, 3: (11,) * 9}
    assert tokens(rounds.draft(begin(rounds, 2, budget=3))) == [[10, 10]]
    assert tokens(rounds.draft(begin(rounds, 3, budget=1))) == [None]
    assert drafter.limits == [[2]]


def test_without_a_drafter_lookup_or_the_requests_wish_there_is_none() -> None:
    drafter = Scripted()
    drafter.says = {2: (10,)}
    for rounds, request in (
        (rounds_of(None), {}),
        (rounds_of(drafter, None), {}),
        (rounds_of(drafter), {"lookup": False}),
    ):
        (sequence,) = begin(rounds, 2, **request)
        assert rounds.draft([sequence]) == [None]
    assert drafter.limits == []


@pytest.mark.parametrize("wrong", [(VOCAB,), (-1, 3), (1,) * 7, ((1, 2),), ("three",)])
def test_what_may_not_be_verified_ends_that_sequences_copies(wrong: tuple[Any, ...]) -> None:
    drafter = Scripted()
    drafter.obey = False
    rounds = rounds_of(drafter)
    sequences = begin(rounds, 2, 3)
    drafter.says = {2: wrong, 3: (7,)}
    assert tokens(rounds.draft(sequences)) == [None, [7]]
    assert sequences[0].drafter is None and drafter.finished[0][1] is False
    assert tokens(rounds.draft(sequences)) == [None, [7]]


def test_a_source_without_drafts_ends_that_sequences_copies() -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    sequences = begin(rounds, 2, 3)
    empty = Copy()
    empty.source = "history"
    propose = drafter.propose
    drafter.says = {3: (7,)}
    drafter.propose = lambda s, limits, batch: [empty, *propose(s, limits, batch)[1:]]  # type: ignore[method-assign]
    assert tokens(rounds.draft(sequences)) == [None, [7]]
    assert [s.drafter is None for s in sequences] == [True, False]


def test_a_failure_for_all_is_traced_to_whose_it_was(caplog: pytest.LogCaptureFixture) -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    sequences = begin(rounds, 2, 3)
    drafter.says = {2: ValueError("broken"), 3: (7, 8)}
    assert tokens(rounds.draft(sequences)) == [None, [7, 8]]
    assert [s.drafter is None for s in sequences] == [True, False]
    assert caplog.text.count("the drafter failed in propose") == 1


def test_a_round_is_told_to_the_drafter() -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    (sequence,) = begin(rounds, 2)
    own: Any = sequence.drafter
    kept = np.array([5, 6], np.int32)
    rounds.settle(sequence, Drafts(np.array([5, 9], np.int32), "history"), 1, kept)
    # A drafter's own chain is not this drafter's to settle.
    rounds.settle(sequence, Drafts(np.array([5], np.int32), "model"), 1, kept)
    rounds.settle(sequence, None, 0, kept)
    assert own.told == [("settle", 1), *[("observe", [5, 6])] * 3]
    assert sequence.window == 4


def test_skipped_rounds_are_counted_once() -> None:
    rounds = rounds_of(Scripted())
    sequences = begin(rounds, 2, 3)
    for _ in range(3):
        rounds.draft(sequences)
    assert (rounds.take_skipped(), rounds.take_skipped()) == (6, 0)
    assert [s.rounds_skipped for s in sequences] == [3, 3]


@pytest.mark.parametrize(("named", "ended", "stored"), [(True, True, True), (True, False, False), (False, True, False)])
def test_only_an_ended_request_of_a_scope_is_kept(named: bool, ended: bool, stored: bool) -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter, named=named)
    (sequence,) = begin(rounds, 2)
    own: Any = sequence.drafter
    assert own.scope == ("of t" if named else None)
    rounds.finish(sequence, ended=ended)
    rounds.finish(sequence, ended=ended)
    assert drafter.finished == [(own, stored)] and sequence.drafter is None
