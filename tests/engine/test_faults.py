"""Whatever fails, it fails for whom it must, nobody waits for ever, and the engine lives on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import EngineClosedError, Finish, GenerationRequest
from trtserve.executor.base import StepInput
from trtserve.sampling import SamplingParams

from .toy import (
    VOCAB,
    ToyDecoder,
    ToyDrafter,
    ToyExecutor,
    ToyProposal,
    ToySequence,
    ToyTokenizer,
    collect,
    ids,
    reference,
    token_ids,
)

Make = Callable[..., LocalEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPTS = [ids("the foo(abc) of the foo("), ids("abcabcabc"), ids("{x}{x}{"), ids("END of END")]


def toy(engine: LocalEngine) -> ToyExecutor:
    assert isinstance(engine._executor, ToyExecutor)
    return engine._executor


def together(engine: LocalEngine, prompts: list[list[int]]) -> list[Finish]:
    """All prompts in one batch; checks the text of those that finished well."""
    gate = threading.Event()
    inner = toy(engine).before_prefill

    def held(slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        assert gate.wait(10)
        inner(slot, start, tokens)

    toy(engine).before_prefill = held
    generations = [engine.submit(GenerationRequest(p, GREEDY)) for p in prompts]
    gate.set()
    finishes = []
    for prompt, generation in zip(prompts, generations, strict=True):
        done = collect(generation)
        if done.finish.reason == "length":
            assert token_ids(done) == reference(prompt, GREEDY)
        finishes.append(done.finish)
    toy(engine).before_prefill = inner
    return finishes


def reasons(finishes: list[Finish]) -> list[str]:
    return [f.reason for f in finishes]


def test_no_finite_logit_ends_that_sequence_alone(make_engine: Make) -> None:
    engine = make_engine()
    toy(engine).poisoned = set(ids("x"))
    finishes = together(engine, PROMPTS)
    assert reasons(finishes) == ["length", "length", "error", "length"]
    assert "no finite logits" in (finishes[2].error or "")
    assert engine.healthy and engine.metrics()["finished_total"]["error"] == 1


def test_a_failed_round_ends_its_batch_and_the_next_works(make_engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    assert reasons(together(engine, PROMPTS[:1])) == ["length"]

    def fail_once(batch: StepInput) -> None:
        if len(batch.slots) == 3:
            toy(engine).before_step = lambda batch: None
            raise RuntimeError("out of device memory")

    toy(engine).before_step = fail_once
    finishes = together(engine, PROMPTS[1:])  # the fourth slot is free and holds the first prompt's text
    assert reasons(finishes) == ["error"] * 3
    assert all("out of device memory" in (f.error or "") for f in finishes)
    assert engine.healthy and "a round of 3 sequences failed" in caplog.text
    again = together(engine, PROMPTS)
    assert reasons(again) == ["length"] * 4
    assert all(f.stats.cached_tokens == 0 for f in again), "no slot's content is trusted after a failed round"


def test_an_executor_that_always_fails_makes_the_engine_unhealthy_until_it_works(make_engine: Make) -> None:
    engine = make_engine()

    def fail(batch: StepInput) -> None:
        raise RuntimeError("device lost")

    toy(engine).before_step = fail
    for n in range(3):
        assert engine.healthy == (n < 3)
        assert reasons(together(engine, PROMPTS[:1])) == ["error"]
    assert not engine.healthy
    toy(engine).before_step = lambda batch: None
    assert reasons(together(engine, PROMPTS[:1])) == ["length"] and engine.healthy


def test_a_failed_prefill_ends_that_sequence_alone(make_engine: Make) -> None:
    engine = make_engine()

    def fail(slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        if ids("x")[0] in tokens:
            raise RuntimeError("bad chunk")

    toy(engine).before_prefill = fail
    finishes = together(engine, PROMPTS)
    assert reasons(finishes) == ["length", "length", "error", "length"] and "bad chunk" in (finishes[2].error or "")


class FailingDrafter(ToyDrafter):
    """Fails at one kind of call, for prompts that contain x."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def _check(self, at: str, tokens: Sequence[int]) -> None:
        if at == self.at and ids("x")[0] in tokens:
            raise KeyError(at)

    def start(self, prompt: NDArray[np.int32], **fields: object) -> ToySequence:  # type: ignore[override]
        self._check("start", prompt.tolist())
        sequence = super().start(prompt, **fields)  # type: ignore[arg-type]
        observe, settle = sequence.observe, sequence.settle

        def checked_observe(tokens: NDArray[np.int32]) -> None:
            self._check("observe", sequence.tokens)
            observe(tokens)

        def checked_settle(accepted: int) -> None:
            self._check("settle", sequence.tokens)
            settle(accepted)

        sequence.observe, sequence.settle = checked_observe, checked_settle  # type: ignore[method-assign]
        return sequence

    def drafts(self, sequence: ToySequence, limit: int) -> list[int]:
        self._check("propose", sequence.tokens)
        if self.at == "beyond the limit" and ids("x")[0] in sequence.tokens:
            return [1] * limit
        if self.at == "beyond the vocabulary" and ids("x")[0] in sequence.tokens:
            return [VOCAB]
        return super().drafts(sequence, limit)

    def propose_one(self, sequence: ToySequence, limit: int) -> ToyProposal:
        if self.at == "beyond the limit":
            limit += 1
        return super().propose_one(sequence, limit)

    def finish(self, sequence: ToySequence, *, store: bool) -> None:
        super().finish(sequence, store=store)
        self._check("finish", sequence.tokens)


@pytest.mark.parametrize(
    "at", ["start", "propose", "observe", "settle", "finish", "beyond the limit", "beyond the vocabulary"]
)
def test_a_failing_drafter_costs_its_sequence_the_copies_only(
    make_engine: Make, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = FailingDrafter(at)
    engine = make_engine(drafter=drafter)
    finishes = together(engine, PROMPTS)
    assert reasons(finishes) == ["length"] * 4
    assert engine.healthy and caplog.text.count("the drafter failed") == 1
    if at != "beyond the limit":  # which the drafter of this test does for all
        assert all(finishes[i].stats.sources["history"].proposed > 0 for i in (0, 1))
    if at in ("start", "propose", "beyond the vocabulary"):
        assert finishes[2].stats.sources["history"].proposed == 0
    assert reasons(together(engine, PROMPTS)) == ["length"] * 4
    assert caplog.text.count("the drafter failed") == 1


def test_a_drafter_that_forgets_a_sequence(make_engine: Make) -> None:
    class Forgetful(ToyDrafter):
        def propose(
            self, sequences: Sequence[ToySequence], limits: NDArray[np.int32], others: int = 0
        ) -> list[ToyProposal]:
            return super().propose(sequences, limits, others)[:-1]

    assert reasons(together(make_engine(drafter=Forgetful), PROMPTS)) == ["length"] * 4


def test_a_failing_detokenizer_ends_that_sequence_alone(make_engine: Make) -> None:
    class Decoder(ToyDecoder):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def push(self, ids: Sequence[int]) -> str:
            if self.number == 2:
                raise ValueError("no such piece")
            return super().push(ids)

    class Tokenizer(ToyTokenizer):
        made = 0

        def stream_decoder(self) -> ToyDecoder:
            self.made += 1
            if self.made == 4:
                raise MemoryError("no decoder")
            return Decoder(self.made)

    engine = make_engine()
    engine._tokenizer = Tokenizer()
    finishes = together(engine, PROMPTS)
    assert reasons(finishes) == ["length", "error", "length", "error"]
    assert "no such piece" in (finishes[1].error or "") and "no decoder" in (finishes[3].error or "")


def test_a_crash_of_the_thread_wakes_everyone(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(drafter=None)
    ready = threading.Event()

    def broken() -> None:
        raise SystemError("bug in the scheduler")

    rounds = []

    def crash_at_third_round(batch: StepInput) -> None:
        assert ready.wait(10)
        rounds.append(len(batch.slots))
        if len(rounds) == 3:
            monkeypatch.setattr(engine, "_admit", broken)

    toy(engine).before_step = crash_at_third_round
    generations = [engine.submit(GenerationRequest(PROMPTS[0], GREEDY)) for _ in range(8)]
    ready.set()
    for generation in generations:
        finish = collect(generation).finish
        assert finish is not None and finish.reason == "error" and "bug in the scheduler" in (finish.error or "")
    engine._thread.join(10)
    assert not engine.healthy and toy(engine).closed
    with pytest.raises(EngineClosedError, match="bug in the scheduler"):
        engine.submit(GenerationRequest(PROMPTS[0], GREEDY))
    assert engine.drain(10)
    assert engine.metrics()["finished_total"]["error"] == 8
