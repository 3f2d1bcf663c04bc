"""Two hundred requests with every kind of sampling, for the tests of equality."""

from __future__ import annotations

import random
from typing import Any

from trtserve.engine.protocol import Completion, GenerationRequest
from trtserve.sampling import SamplingParams

from .toy import EOS, token_ids

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
        assert completion.finish is not None
        assert completion.finish.reason == ("stop" if tokens[-1] == EOS else "length")
