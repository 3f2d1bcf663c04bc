"""The text is what the model alone writes, whatever drafts its chains and however often that fails."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.drafters.base import ChainDrafter, ChainRequest
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, Generation, GenerationRequest
from trtserve.executor.base import StepInput, StepOutput
from trtserve.lookup.drafter import Drafter
from trtserve.sampling import SamplingParams

from .tiny import LOOKUP, MAIN, OTHER, collect, draft_model, open_engine, related, token_ids, weights


def requests() -> list[GenerationRequest]:
    draw = random.Random(3)
    out = []
    for n in range(18):
        block = [draw.randrange(2, 64) for _ in range(draw.randint(1, 12))]
        prompt = block * draw.randint(1, 4) + block[: draw.randint(0, 3)]
        kind: dict[str, float] = [
            {"temperature": 0},
            {"temperature": 0.7},
            {"temperature": 0.6, "top_k": 8, "repetition_penalty": 1.2},
        ][n % 3]  # fmt: skip
        params = SamplingParams(**kind, seed=n, max_tokens=draw.choice([1, 2, 5, 30, 40]), ignore_eos=n % 2 == 0)
        out.append(GenerationRequest(prompt, params, request_id=str(n)))
    return out


class Raising(ChainDrafter):
    """Raises at random calls, at every door; else drafts like the drafter it wraps."""

    def __init__(self, inner: ChainDrafter, seed: int) -> None:
        self._inner, self._random = inner, random.Random(seed)
        self.raised = self.drafted = 0

    def _maybe(self, share: float) -> None:
        if self._random.random() < share:
            self.raised += 1
            raise RuntimeError("the drafter broke")

    def begin(self, slot: int, keep: int) -> None:
        self._maybe(0.2)
        self._inner.begin(slot, keep)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._maybe(0.3)
        self._inner.copy_prefix(source, target, length)

    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        self._maybe(0.15)
        chains = self._inner.draft(wanted)
        self._maybe(0.15)
        self.drafted += 1
        return chains

    def observe_step(self, batch: StepInput, out: StepOutput) -> None:
        self._maybe(0.05)

    def close(self) -> None:
        self._inner.close()
        self._maybe(1.0)


def chain_of(name: str) -> ChainDrafter | None:
    if name == "off":
        return None
    if name == "other":
        return draft_model(OTHER, weights(OTHER, 2))
    if name == "itself":
        return draft_model(MAIN, weights(MAIN, 1))
    if name == "related":
        return draft_model(MAIN, related(0.05))
    return Raising(draft_model(MAIN, related(0.02)), seed=4)


def run(engine: LocalEngine, asked: Sequence[GenerationRequest], together: bool) -> list[Completion]:
    """Alone, or arriving in the middle of rounds, a few at a time."""
    if not together:
        return [collect(engine.submit(r)) for r in asked]
    draw, waiting, arrived = random.Random(6), iter(asked), list[Generation]()
    step = engine._executor.step

    def step_and_arrive(batch: StepInput) -> StepOutput:
        while draw.random() < 0.3 and (request := next(waiting, None)) is not None:
            arrived.append(engine.submit(request))
        return step(batch)

    engine._executor.step = step_and_arrive  # type: ignore[method-assign]
    done: list[Completion] = []
    while len(done) < len(asked):
        if len(done) == len(arrived):
            arrived.append(engine.submit(next(waiting)))
        done.append(collect(arrived[len(done)]))
    engine._executor.step = step  # type: ignore[method-assign]
    return done


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    engine = open_engine(None, drafter=None)
    try:
        return [token_ids(done) for done in run(engine, requests(), together=False)]
    finally:
        engine.close()


@pytest.mark.parametrize("copies", [False, True], ids=["no_copies", "copies"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("name", ["off", "other", "itself", "related", "raising"])
def test_text_is_the_models_own(
    name: str, together: bool, copies: bool, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    chain = chain_of(name)
    engine = open_engine(chain, drafter=Drafter(LOOKUP) if copies else None)
    try:
        done = run(engine, requests(), together)
        metrics = engine.metrics()
    finally:
        engine.close()
    assert [token_ids(d) for d in done] == expected
    assert all(d.finish.reason in ("stop", "length") for d in done)
    drafts, accepted = metrics["draft_tokens_total"], metrics["accepted_tokens_total"]
    assert (drafts["history"] > 0) == copies
    assert (drafts["model"] > 0) == (name != "off")
    # What every request says of its sources is what the counters say of all.
    for source, total in drafts.items():
        stats = [d.finish.stats.sources[source] for d in done]  # type: ignore[index]
        assert sum(s.proposed for s in stats) == total
        assert sum(s.accepted for s in stats) == accepted[source]
    assert accepted["model"] == sum(t.source == "model" for d in done for t in d.tokens)
    assert metrics["copies_total"]["model"] <= metrics["round_sequences_total"]
    if name in ("itself", "related"):
        assert accepted["model"] > 0
    if name == "raising":
        assert isinstance(chain, Raising) and chain.raised > 5 and chain.drafted > 0
        assert sum("the drafter failed" in r.getMessage() for r in caplog.records) == 1
    else:
        assert not caplog.records


def test_a_chain_of_the_model_itself_is_accepted_whole() -> None:
    engine = open_engine(draft_model(MAIN, weights(MAIN, 1)), num_drafts=4)
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    try:
        done = collect(engine.submit(GenerationRequest(list(range(2, 22)), params)))
        batch = [engine.submit(GenerationRequest([n, 7, 9], params)) for n in range(3, 7)]
        batched = [collect(generation) for generation in batch]
    finally:
        engine.close()
    for one in (done, *batched):
        stats = one.finish.stats
        assert stats.rounds == 10 and stats.completion_tokens / stats.rounds == 5
        assert stats.sources["model"].proposed == stats.sources["model"].accepted == 40
        assert [t.source for t in one.tokens] == ["model", "model", "model", "model", None] * 10


def test_a_request_without_lookup_still_has_chains() -> None:
    engine = open_engine(draft_model(MAIN, weights(MAIN, 1)), drafter=Drafter(LOOKUP))
    request = GenerationRequest(
        [5, 6, 7] * 6, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), lookup=False
    )
    try:
        done = collect(engine.submit(request))
    finally:
        engine.close()
    assert done.finish.stats.sources["history"].proposed == 0
    assert done.finish.stats.sources["model"].accepted == 16
