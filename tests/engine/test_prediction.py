"""An edit with its text as the predicted output is at least as fast as with the text in the prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest, GenerationStats
from trtserve.executor.base import Executor, ExecutorInfo, StepInput, StepOutput
from trtserve.lookup.drafter import Drafter
from trtserve.sampling import SamplingParams
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

from .toy import VOCAB, ToyTokenizer, collect, token_ids, toy_manifest

WORDS = 34
TASK, ANSWER = [1, 2, 3, 4, 5], [6, 7, 8, 9]


class Forced(Executor):
    """Answers rightly, and computes nothing."""

    def __init__(self, limits: Limits, speculative: Speculative) -> None:
        self.script = np.empty(0, np.int32)
        self.info = ExecutorInfo(
            max_batch_size=1, max_seq_len=limits.max_seq_len, prefill_chunk=limits.prefill_chunk, vocab_size=VOCAB,
            tiers=plan_tiers(limits, speculative), exact=True, device="forced",
        )  # fmt: skip

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        pass

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        pass

    def step(self, batch: StepInput) -> StepOutput:
        rows = int(batch.num_rows[0])
        targets = self.script[np.minimum(int(batch.lengths[0]) + 1 + np.arange(rows), len(self.script) - 1)]
        wrong = np.flatnonzero(batch.tokens[1:rows] != targets[: rows - 1])
        accepted = int(wrong[0]) if len(wrong) else rows - 1
        return StepOutput(targets, np.array([accepted], np.int32), np.zeros(1, np.bool_), [None])

    def close(self) -> None:
        pass


def edits() -> Iterator[tuple[list[int], list[int]]]:
    """(a text, the text after an edit): lines of a few words, then some replaced, inserted or left out."""
    draw = random.Random(11)
    for _ in range(40):
        text = [draw.randrange(10, 10 + WORDS) for _ in range(draw.randint(60, 200))]
        edited = list(text)
        for _ in range(draw.randint(1, 5)):
            at, kind = draw.randrange(len(edited)), draw.randrange(3)
            new = [draw.randrange(10, 10 + WORDS) for _ in range(draw.randint(1, 3))]
            edited[at : at + (1 if kind else 0)] = new if kind < 2 else []
        yield text, edited


@pytest.mark.parametrize("policy", ["adaptive", "window"])
def test_a_text_as_prediction_is_at_least_as_fast_as_in_the_prompt(policy: str) -> None:
    limits = Limits(max_batch_size=1, max_seq_len=1024, prefill_chunk=64)
    lookup = PromptLookup.model_validate({"policy": policy})
    speculative = Speculative(prompt_lookup=lookup)
    executor = Forced(limits, speculative)
    engine = LocalEngine(executor, Drafter(lookup), ToyTokenizer(), toy_manifest(limits, speculative), hermetic=True)

    def run(prompt: list[int], answer: list[int], prediction: list[int]) -> GenerationStats:
        executor.script = np.array([*prompt, *answer], np.int32)
        params = SamplingParams(temperature=0, max_tokens=len(answer), ignore_eos=True)
        done = collect(engine.submit(GenerationRequest(prompt, params, prediction=prediction)))
        assert token_ids(done) == answer
        return done.finish.stats

    rounds = {"prompt": 0, "prediction": 0, "neither": 0}
    try:
        for text, answer in edits():
            in_prompt = run([*TASK, *text, *ANSWER], answer, [])
            predicted = run([*TASK, *ANSWER], answer, text)
            rounds["prompt"] += in_prompt.rounds
            rounds["prediction"] += predicted.rounds
            rounds["neither"] += run([*TASK, *ANSWER], answer, []).rounds
            assert in_prompt.sources["prediction"].proposed == 0
            assert predicted.sources["prediction"].accepted > 0
    finally:
        engine.close()
    assert rounds["prediction"] <= rounds["prompt"] < rounds["neither"]
