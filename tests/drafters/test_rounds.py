"""Which rounds have chains: failures, limits, and the rule of expected gain."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve import drafters
from trtserve.drafters.base import ChainDrafter, ChainRequest, Opening
from trtserve.engine.chain import MAX_PAUSE, ChainRounds
from trtserve.engine.chain_cost import MAX_PROBE_EVERY, PROBE_EVERY, ChainGate
from trtserve.engine.protocol import GenerationRequest
from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.executor.base import ExecutorError
from trtserve.lookup.cost import read_curve
from trtserve.sampling import SamplingParams

from .tiny import (
    LIMITS,
    LOOKUP,
    MAIN,
    OTHER,
    VOCAB,
    collect,
    draft_model,
    manifest,
    open_engine,
    speculative,
    token_ids,
    weights,
)


@dataclasses.dataclass
class Taker:
    slot_index: int
    tokens: NDArray[np.int32]
    remaining: int


class Scripted(ChainDrafter):
    """Proposes zeros as asked, or what ``answer`` makes of the requests."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[int, int]]] = []
        self.error: Exception | None = None
        self.begin_error: Exception | None = None
        self.answer = lambda wanted: [np.zeros(w.limit, np.int32) for w in wanted]
        self.closed = 0

    def begin(self, slot: int, keep: int) -> None:
        if self.begin_error is not None:
            raise self.begin_error

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        pass

    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        self.asked.append([(w.slot, w.limit) for w in wanted])
        if self.error is not None:
            raise self.error
        chains: list[NDArray[np.int32]] = self.answer(wanted)
        return chains

    def close(self) -> None:
        self.closed += 1


def takers(*remaining: int) -> list[Taker]:
    return [Taker(slot, np.arange(2, 12, dtype=np.int32), left) for slot, left in enumerate(remaining)]


def rounds_of(drafter: ChainDrafter, gate: ChainGate | None = None, num_drafts: int = 4) -> ChainRounds:
    return ChainRounds(drafter, num_drafts, VOCAB, gate)


def test_only_those_without_a_copy_and_within_every_limit() -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    found = rounds.draft(takers(50, 50, 3, 1, 2), [0, 3, 0, 0, 0], most=9)
    assert drafter.asked == [[(0, 4), (2, 2), (4, 1)]]
    assert [(b, len(chain)) for b, chain in found] == [(0, 4), (2, 2), (4, 1)]
    rounds.draft(takers(50), [0], most=2)
    assert drafter.asked[-1] == [(0, 2)]
    for copied, most in (([1], 9), ([0], 0)):
        assert rounds.draft(takers(50), copied, most) == []
    assert len(drafter.asked) == 2


def test_an_empty_chain_is_a_plain_round() -> None:
    drafter = Scripted()
    drafter.answer = lambda wanted: [np.empty(0, np.int32), np.array([5], np.int32)]
    assert [b for b, _ in rounds_of(drafter).draft(takers(9, 9), [0, 0], 4)] == [1]


def test_failures_pause_it_longer_and_longer(caplog: pytest.LogCaptureFixture) -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    drafter.error = RuntimeError("broken")
    at = []
    for n in range(400):
        before = len(drafter.asked)
        assert rounds.draft(takers(9), [0], 4) == []
        if len(drafter.asked) > before:
            at.append(n)
    gaps = np.diff(at).tolist()
    assert gaps[:6] == [2, 3, 5, 9, 17, 33] and set(gaps[6:]) == {MAX_PAUSE + 1}
    assert len([r for r in caplog.records if "the drafter failed in draft" in r.getMessage()]) == 1
    drafter.error = None
    while not rounds.draft(takers(9), [0], 4):
        pass
    drafter.error = RuntimeError("broken again")
    assert rounds.draft(takers(9), [0], 4) == []
    drafter.error = None
    assert rounds.draft(takers(9), [0], 4) == [] and len(rounds.draft(takers(9), [0], 4)) == 1


@pytest.mark.parametrize(
    "answer",
    [[], [[1], [2]], [[1] * 5], [[-1]], [[VOCAB]], [[[1]]]],
    ids=["none", "too_many", "too_long", "negative", "outside", "two_dimensional"],
)
def test_what_may_not_be_verified_counts_as_a_failure(answer: list[object], caplog: pytest.LogCaptureFixture) -> None:
    drafter = Scripted()
    drafter.answer = lambda wanted: [np.array(chain, np.int32) for chain in answer]
    assert rounds_of(drafter).draft(takers(9), [0], 4) == []
    assert "the drafter failed in draft" in caplog.text
    assert "allowed" in caplog.text or "chains for 1 sequences" in caplog.text


def test_a_slot_that_could_not_be_handed_over_has_no_chains() -> None:
    drafter = Scripted()
    rounds = rounds_of(drafter)
    drafter.begin_error = RuntimeError("broken")
    rounds.begin(1, 0)
    assert [b for b, _ in rounds.draft(takers(9, 9), [0, 0], 4)] == [0]
    drafter.begin_error = None
    rounds.begin(1, 0)
    assert [b for b, _ in rounds.draft(takers(9, 9), [0, 0], 4)] == [0, 1]


def test_an_engine_closes_its_drafter_once() -> None:
    drafter = Scripted()
    engine = open_engine(drafter)
    engine.close()
    engine.close()
    assert drafter.closed == 1


def curve(
    first: float, per_row: float, batches: Sequence[int] = (1, 4), rows: Sequence[int] = (1, 2, 5, 9)
) -> CostCurve:
    """``first`` + ``per_row`` for each further row of the batch, at two contexts, the longer half as dear again."""
    points = [
        CostPoint(batch=b, rows=r, context=c, seconds=(first + per_row * (b * r - 1)) * (1.5 if c > 100 else 1.0))
        for b in batches
        for r in rows
        for c in (64, 512)
    ]
    return CostCurve(device="cpu", points=tuple(points))


def gate_of(verify_row: float, draft: float, slots: int = 4) -> ChainGate:
    verify, draft_forward = read_curve(curve(1.0, verify_row)), read_curve(curve(draft, 0.0))
    assert verify is not None and draft_forward is not None
    return ChainGate(verify, draft_forward, slots)


def settle(gate: ChainGate, accepted: int, times: int, proposed: int = 4, slot: int = 0) -> None:
    for _ in range(times):
        gate.settle(slot, proposed, accepted)


def test_a_chain_is_as_long_as_it_pays() -> None:
    gate = gate_of(verify_row=0.02, draft=0.3)
    settle(gate, 4, 30)
    assert gate.length(1, 0, [(0, 4)], 64) == 4
    settle(gate, 0, 200)
    assert gate.length(1, 0, [(0, 4)], 64) == 0
    settle(gate, 1, 60, proposed=2)
    assert 0 < gate.length(1, 0, [(0, 4)], 64) < 4


def test_a_dear_draft_model_is_not_asked() -> None:
    gate = gate_of(verify_row=0.02, draft=1.1)
    settle(gate, 4, 30)
    held_back = 0
    for probe in range(8):
        rounds = min(PROBE_EVERY << probe, MAX_PROBE_EVERY)
        held_back += rounds
        lengths = [gate.length(1, 0, [(0, 4)], 64) for _ in range(rounds + 3)]
        # Asked until there is a chain: the drafter may have much to catch up with.
        assert lengths == [0] * rounds + [1, 1, 1], "and yet its estimate is kept alive"
        assert gate.rounds_held_back == held_back
        gate.settle(0, 1, 1)


def test_probes_are_frequent_again_after_chains_that_paid() -> None:
    gate = gate_of(verify_row=0.02, draft=0.5)
    settle(gate, 0, 100)
    for _ in range(400):
        if gate.length(1, 0, [(0, 4)], 64):
            gate.settle(0, 1, 0)
    settle(gate, 4, 40)
    assert gate.length(1, 0, [(0, 4)], 64) > 1
    settle(gate, 0, 200)
    assert [gate.length(1, 0, [(0, 4)], 64) for _ in range(PROBE_EVERY + 1)] == [0] * PROBE_EVERY + [1]


def test_dear_rows_shorten_chains_in_a_batch() -> None:
    gate = gate_of(verify_row=0.15, draft=0.02)
    for slot in range(4):
        settle(gate, 2, 20, proposed=3, slot=slot)
    alone = gate.length(1, 0, [(0, 4)], 64)
    together = gate.length(4, 0, [(slot, 4) for slot in range(4)], 64)
    assert together < alone


def test_a_new_sequence_starts_from_what_all_had() -> None:
    good, bad = gate_of(0.05, 0.3), gate_of(0.05, 0.3)
    settle(good, 4, 50)
    settle(bad, 0, 50)
    for gate in (good, bad):
        gate.begin(2)
    assert good.length(1, 0, [(2, 4)], 64) > 0
    assert bad.length(1, 0, [(2, 4)], 64) == 0
    # Its own acceptances soon count for more.
    settle(bad, 4, 12, slot=2)
    assert bad.length(1, 0, [(2, 4)], 64) == 4
    bad.begin(2)
    settle(bad, 0, 200, slot=3)
    assert bad.length(1, 0, [(2, 4)], 64) == 0


def test_equal_calls_give_equal_decisions() -> None:
    def decisions() -> list[int]:
        gate, out = gate_of(0.05, 0.2), []
        for n in range(200):
            length = gate.length(1 + n % 3, n % 2, [(n % 4, 1 + n % 4)], 10 * n)
            out.append(length)
            if length:
                gate.settle(n % 4, length, (n * 7) % (length + 1))
        return out

    assert decisions() == decisions()


def test_an_engine_without_both_curves_or_of_another_device_has_no_gate() -> None:
    curves = (curve(1.0, 0.1), curve(0.1, 0.1))
    assert ChainGate.of(manifest(speculative(4), curves=curves), "cpu") is not None
    assert ChainGate.of(manifest(speculative(4), curves=curves), "cuda:0") is None
    assert ChainGate.of(manifest(speculative(4)), "cpu") is None
    no_draft = (curves[0], CostCurve(device="cpu", points=()))
    assert ChainGate.of(manifest(speculative(4), curves=no_draft), "cpu") is None


@pytest.mark.parametrize(("draft_cost", "layers"), [(0.01, "same"), (0.01, "other"), (5.0, "same")])
def test_gated_engine_writes_the_same_and_drafts_where_it_pays(draft_cost: float, layers: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    request = GenerationRequest(list(range(5, 25)), params)
    plain = open_engine(None)
    expected = token_ids(collect(plain.submit(request)))
    plain.close()
    model = MAIN if layers == "same" else OTHER
    drafter = draft_model(model, weights(model, 1 if layers == "same" else 2))
    engine = open_engine(drafter, curves=(curve(1.0, 0.02), curve(draft_cost, 0.0)))
    try:
        done = collect(engine.submit(request))
    finally:
        engine.close()
    assert token_ids(done) == expected
    stats = done.finish.stats
    proposed = stats.sources["model"].proposed
    if (draft_cost, layers) == (0.01, "same"):
        assert stats.rounds == 20 and proposed == 80
    elif draft_cost > 1:
        # The prompt and what followed is caught up with first, a forward's worth of rows in each round.
        assert proposed == 1 and stats.rounds >= 99
    else:
        assert 0 < proposed < stats.rounds, "a random model is hardly ever right, and soon hardly ever asked"


def test_a_drafter_is_one_module_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scripted_head.py").write_text("def open_drafter(opening):\n    return opening.manifest.name\n")
    assert "draft_model" in drafters.names() and "base" not in drafters.names()
    plain = open_engine(None)
    opening = Opening(tmp_path, manifest(speculative(4)), plain._executor)
    try:
        with pytest.raises(ExecutorError, match=r"its drafter is scripted_head.*allowed: none, draft_model"):
            drafters.open_drafter("scripted_head", opening)
        monkeypatch.setattr(drafters, "__path__", [*drafters.__path__, str(tmp_path)])
        assert drafters.open_drafter("scripted_head", opening) == "tiny"
        with pytest.raises(ExecutorError, match="its drafter is draft_model, but it holds none"):
            drafters.open_drafter("draft_model", opening)
    finally:
        plain.close()


def test_copies_keep_their_own_limits_beside_long_chains() -> None:
    """max_drafts and batch_max_drafts bound copies, num_drafts chains, whichever is longer."""

    engine = open_engine(
        Scripted(), num_drafts=12, lookup=LOOKUP.model_copy(update={"max_drafts": 8, "batch_max_drafts": 3})
    )
    try:
        assert [engine._copies.most_drafts(n) for n in (1, 2, 3, 4)] == [8, 3, 3, 0]
        assert engine.info.max_rows(1) == 13 and engine.info.max_rows(LIMITS.max_batch_size) == 13
    finally:
        engine.close()
