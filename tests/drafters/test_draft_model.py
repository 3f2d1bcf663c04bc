"""The draft model by itself: catching up, sharing prefixes, failing half way."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.drafters.base import ChainRequest
from trtserve.drafters.draft_model import DraftModel

from .tiny import LIMITS, MAIN, OTHER, VOCAB, config, draft_executor, draft_model, fresh_chain, weights


def tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(2, VOCAB, count).astype(np.int32)


class Recorder:
    """A draft model's executor that records its forwards, and fails in the one of number ``fail_at``."""

    def __init__(self) -> None:
        self.inner = draft_executor(OTHER, weights(OTHER, 2))
        self.calls: list[tuple[list[int], list[int], list[int]]] = []
        self.copies: list[tuple[int, int, int]] = []
        self.fail_at = -1
        self.vocab_size = self.inner.vocab_size
        self.max_packed_rows = self.inner.max_packed_rows
        self.predicts: int | None = None

    def predict(self, slots: NDArray[np.int32], lengths: NDArray[np.int32], num_rows: NDArray[np.int32],
                tokens: NDArray[np.int32]) -> NDArray[np.int32]:  # fmt: skip
        self.calls.append((slots.tolist(), lengths.tolist(), num_rows.tolist()))
        assert len(tokens) == num_rows.sum() <= self.max_packed_rows
        if len(self.calls) - 1 == self.fail_at:
            # Worse than doing nothing: garbage where the rows would have gone.
            self.inner.predict(slots, lengths, num_rows, np.full_like(tokens, 7))
            raise RuntimeError("broken")
        best = self.inner.predict(slots, lengths, num_rows, tokens)
        return best if self.predicts is None else np.full_like(best, self.predicts)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.copies.append((source, target, length))
        self.inner.copy_prefix(source, target, length)

    def close(self) -> None:
        self.inner.close()


def recorded() -> tuple[DraftModel, Recorder]:
    model = Recorder()
    shape = {"slots": LIMITS.max_batch_size, "positions": LIMITS.max_seq_len, "vocab_size": VOCAB}
    return DraftModel(model, **shape), model


def right(sequence: NDArray[np.int32], limit: int) -> list[int]:
    return fresh_chain(draft_executor(OTHER, weights(OTHER, 2)), sequence, limit)


def one(drafter: DraftModel, slot: int, sequence: NDArray[np.int32], limit: int) -> list[int]:
    chain: list[int] = drafter.draft([ChainRequest(slot, sequence, limit)])[0].tolist()
    return chain


def test_catches_up_with_everything_in_its_first_forward() -> None:
    drafter, model = recorded()
    sequence = tokens(40)
    assert one(drafter, 1, sequence[:10], 3) == right(sequence[:10], 3)
    assert model.calls == [([1], [0], [10]), ([1], [10], [1]), ([1], [11], [1])]
    model.calls.clear()
    # Rounds served by copies: 12 tokens that it never saw, and drafts of its own that were not taken.
    assert one(drafter, 1, sequence[:22], 2) == right(sequence[:22], 2)
    assert model.calls == [([1], [10], [12]), ([1], [22], [1])]


def test_accepted_drafts_are_not_computed_again() -> None:
    sequence = tokens(10)
    chain = right(sequence, 4)
    for accepted, start, rows in ((4, 13, 2), (2, 12, 1), (0, 10, 1)):
        drafter, model = recorded()
        assert one(drafter, 0, sequence, 4) == chain
        model.calls.clear()
        bonus = (chain[accepted] + 1) % VOCAB if accepted < 4 else 5
        longer = np.array([*sequence, *chain[:accepted], bonus], np.int32)
        assert one(drafter, 0, longer, 2) == right(longer, 2)
        assert model.calls[0] == ([0], [start], [rows])


def test_the_same_tokens_again_take_one_row() -> None:
    drafter, model = recorded()
    sequence = tokens(10)
    chain = one(drafter, 0, sequence, 3)
    model.calls.clear()
    assert one(drafter, 0, sequence, 3) == chain
    assert model.calls[0] == ([0], [9], [1])


def test_limits_and_order_are_the_callers() -> None:
    drafter, model = recorded()
    sequences = [tokens(n, n) for n in (9, 5, 7)]
    wanted = [ChainRequest(2, sequences[0], 1), ChainRequest(0, sequences[1], 4), ChainRequest(3, sequences[2], 2)]
    chains = drafter.draft(wanted)
    assert [c.tolist() for c in chains] == [right(w.tokens, w.limit) for w in wanted]
    assert all(c.dtype == np.int32 for c in chains)
    assert [rows for _, _, rows in model.calls] == [[5, 7, 9], [1, 1], [1], [1]]
    assert drafter.draft([]) == []


def test_a_long_prompt_does_not_hold_up_its_neighbours() -> None:
    drafter, model = recorded()
    room = model.max_packed_rows
    long, short = tokens(2 * room + 9, 1), tokens(6, 2)
    lengths = []
    for grown in range(4):
        short = np.append(short, np.int32(9 + grown))
        chains = drafter.draft([ChainRequest(0, long, 2), ChainRequest(1, short, 2)])
        lengths.append([len(c) for c in chains])
        assert chains[1].tolist() == right(short, 2)
    assert lengths == [[0, 2], [0, 2], [2, 2], [2, 2]]
    assert chains[0].tolist() == right(long, 2)


def test_a_prefix_from_a_slot_that_lags_behind() -> None:
    """What a slot of the draft model holds is less than what the main model's does, or something else."""
    drafter, model = recorded()
    source = tokens(30)
    one(drafter, 0, source[:12], 3)
    drafter.begin(0, 0)
    one(drafter, 0, source[:5], 1)  # stale tokens of the longer text lie behind these five
    drafter.begin(1, 0)
    drafter.copy_prefix(0, 1, 10)
    assert model.copies == [(0, 1, 5)]
    model.calls.clear()
    assert one(drafter, 1, source[:14], 3) == right(source[:14], 3)
    assert model.calls[0] == ([1], [5], [9])
    # A shorter prefix than the slot holds already is not worth a copy.
    drafter.copy_prefix(0, 1, 4)
    assert model.copies == [(0, 1, 5)]


def test_a_copied_prefix_that_is_not_the_sequences_is_found_out() -> None:
    drafter, _ = recorded()
    other, sequence = tokens(12, 1), tokens(20, 2)
    sequence[:3] = other[:3]
    one(drafter, 0, other, 2)
    drafter.begin(1, 0)
    drafter.copy_prefix(0, 1, 10)
    assert one(drafter, 1, sequence, 3) == right(sequence, 3)


def test_a_new_sequence_keeps_no_more_than_it_may() -> None:
    drafter, model = recorded()
    sequence = tokens(20)
    one(drafter, 0, sequence, 2)
    for keep, start in ((20, 19), (7, 7), (0, 0)):
        drafter.begin(0, keep)
        model.calls.clear()
        one(drafter, 0, sequence, 1)
        assert model.calls[0] == ([0], [start], [20 - start])


@pytest.mark.parametrize("seed", range(6))
def test_right_after_a_failure_in_any_forward(seed: int) -> None:
    drafter, model = recorded()
    draw = random.Random(seed)
    sequences = {slot: tokens(draw.randint(1, 12), slot) for slot in range(4)}
    compared = 0
    for _ in range(40):
        model.calls.clear()
        model.fail_at = draw.choice([-1, 0, 1, 2])
        asked = draw.sample(range(4), draw.randint(1, 4))
        wanted = [ChainRequest(slot, sequences[slot], draw.randint(1, 4)) for slot in asked]
        try:
            chains = drafter.draft(wanted)
        except RuntimeError:
            chains = []
        for request, chain in zip(wanted, chains, strict=False):
            if len(chain):  # none: after failures there may be more to catch up with than one forward takes
                assert chain.tolist() == right(request.tokens, request.limit)
                compared += 1
            taken = chain[: draw.randint(0, len(chain))]
            grown = np.concatenate([request.tokens, taken, tokens(1, draw.randrange(99))])
            if len(grown) >= 140:
                grown = grown[:3]
                drafter.begin(request.slot, 3)
            sequences[request.slot] = grown
    assert compared > 10


def test_ends_where_no_token_can_be_predicted() -> None:
    drafter, model = recorded()
    model.predicts = -1
    assert one(drafter, 0, tokens(5), 3) == []
    model.predicts = VOCAB
    assert one(drafter, 0, tokens(5), 3) == []


def test_vocabularies_padded_differently() -> None:
    wide = config(1, VOCAB + 32)
    drafter = draft_model(wide, weights(wide, 3))
    reference = draft_executor(wide, weights(wide, 3))
    found = []
    for n in range(30):
        drafter.begin(0, 0)
        found.append(one(drafter, 0, tokens(8, n), 4))
    assert found == [fresh_chain(reference, tokens(8, n), 4) for n in range(30)]
    assert any(len(chain) < 4 for chain in found), "some chains end at a token that the main model lacks"
    narrow = config(1, VOCAB - 32)
    drafter = draft_model(narrow, weights(narrow, 3))
    low = tokens(8) % 32
    assert len(one(drafter, 0, low, 4)) == 4
    chains = drafter.draft([ChainRequest(0, np.append(low, np.int32(VOCAB - 1)), 3), ChainRequest(1, low, 3)])
    assert [len(chain) for chain in chains] == [0, 3]


def test_too_small_forwards_are_refused() -> None:
    model = Recorder()
    model.max_packed_rows = 7
    with pytest.raises(ValueError, match="hold 7 rows; 4 slots need 8"):
        DraftModel(model, slots=4, positions=16, vocab_size=VOCAB)


def test_predict_of_the_executor() -> None:
    executor = draft_executor(MAIN, weights(MAIN, 1))
    a, b = tokens(9, 1), tokens(4, 2)
    expected = [int(executor.logits(slot, 0, run)[-1].argmax()) for slot, run in ((2, a), (0, b))]
    packed = (np.array([2, 0], np.int32), np.zeros(2, np.int32), np.array([9, 4], np.int32), np.concatenate([a, b]))
    assert executor.predict(*packed).tolist() == expected
    assert executor.predict(*packed).dtype == np.int32
    many = tokens(executor.max_packed_rows + 1)
    with pytest.raises(ValueError, match="allowed in one forward"):
        executor.predict(np.array([0], np.int32), np.zeros(1, np.int32), np.array([len(many)], np.int32), many)
    broken = {n: w * float("nan") if n == "final_norm" else w for n, w in weights(MAIN, 1).items()}
    assert draft_executor(MAIN, broken).predict(*packed).tolist() == [-1, -1]
