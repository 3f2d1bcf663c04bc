"""Two hundred requests with every kind of sampling, for the tests of equality."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, Generation, GenerationRequest
from trtserve.executor.base import StepInput, StepOutput
from trtserve.sampling import SamplingParams

from .toy import EOS, collect, token_ids

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8},
    "filtered": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 1.0},
    "held_back": {"temperature": 0, "min_tokens": 12, "logit_bias": {3: 2.0, 7: -100.0, EOS: 1.0}},
}
PER_KIND = 40


def workload() -> list[GenerationRequest]:
    """Prompts that repeat themselves in part, for every kind of sampling."""
    draw = random.Random(20)
    requests = []
    for kind in KINDS.values():
        for i in range(PER_KIND):
            block = [draw.randrange(46) for _ in range(draw.randint(2, 20))]
            prompt = [draw.randrange(46) for _ in range(draw.randint(0, 10))] + block
            if i % 2:
                prompt += [draw.randrange(46) for _ in range(draw.randint(0, 4))] + block[: draw.randint(1, len(block))]
            most = draw.choice([None, 1, 2, 3, 24, 40])
            params = SamplingParams(**{**kind, "seed": i, "max_tokens": None if "min_tokens" in kind else most})
            requests.append(GenerationRequest(prompt, params))
    return requests


def check(done: list[Completion], expected: list[list[int]]) -> None:
    for completion, tokens in zip(done, expected, strict=True):
        assert token_ids(completion) == tokens
        assert completion.finish.reason == ("stop" if tokens[-1] == EOS else "length")


def at_odd_moments(engine: LocalEngine, requests: Sequence[GenerationRequest], seed: int = 7) -> list[Completion]:
    """Every request's completion. Most arrive on the scheduler's own thread, in the middle of a round: as odd a moment
    as there is, and the same in every run."""
    executor, draw = engine._executor, random.Random(seed)
    arrived: dict[int, Generation] = {}
    arrivals = iter(range(len(requests)))
    step = executor.step

    def submit() -> bool:
        index = next(arrivals, None)
        if index is not None:
            arrived[index] = engine.submit(requests[index])
        return index is not None

    def step_and_arrive(batch: StepInput) -> StepOutput:
        while draw.random() < 0.4 and submit():
            pass
        return step(batch)

    executor.step = step_and_arrive  # type: ignore[method-assign]
    done: dict[int, Completion] = {}
    while len(done) < len(requests):
        # When all that arrived is collected, nothing runs, and nothing arrives unless this thread starts it.
        if len(done) == len(arrived):
            submit()
        for index in sorted(arrived.keys() - done.keys()):
            done[index] = collect(arrived[index])
    executor.step = step  # type: ignore[method-assign]
    return [done[index] for index in range(len(requests))]
