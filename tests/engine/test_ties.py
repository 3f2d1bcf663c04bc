"""An executor that is not exact: where texts with lookup on and off part, the two tokens are a proven tie.

The torch operators add up in another order for another number of rows, so logits differ in their last bits. The model
here is made to show it: its tokens come in pairs whose embeddings are equal to about a rounding, so that nearly every
choice is between two that the noise decides.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.drafters.tiny import LIMITS, MAIN, PlainText, collect, manifest, speculative, token_ids, weights
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest
from trtserve.executor.torch import TorchExecutor
from trtserve.lookup.drafter import Drafter
from trtserve.sampling import SamplingParams
from trtserve.settings import PromptLookup, plan_tiers

from .workload import at_odd_moments

#: Two logits closer than this share of the largest are a tie: some hundred times the rounding of one float32 sum.
TOLERANCE = 1e-5
LOOKUP = PromptLookup(ngram=2, max_drafts=8, batch_max_drafts=4)


def paired(noise: float) -> TorchExecutor:
    """Torch operators over the tiny model; every odd token has the embedding of the even one before, but for noise."""
    tensors = weights(MAIN, 1)
    embed = tensors["embed"]
    embed[1::2] = embed[::2] * (1 + noise)
    tiers = plan_tiers(LIMITS, speculative(0, LOOKUP))
    return TorchExecutor(MAIN, tensors.items(), LIMITS, tiers, threads=1, native=False)


def run(noise: float, requests: list[GenerationRequest], lookup: bool) -> list[list[int]]:
    executor = paired(noise)
    assert not executor.info.exact
    drafter = Drafter(LOOKUP) if lookup else None
    engine = LocalEngine(executor, drafter, PlainText(), manifest(speculative(0, LOOKUP)))
    try:
        done = at_odd_moments(engine, requests) if lookup else [collect(engine.submit(r)) for r in requests]
    finally:
        engine.close()
    return [token_ids(d) for d in done]


def tie_gap(noise: float, prompt: list[int], one: list[int], other: list[int]) -> float | None:
    """At the first token that differs: how far the worse of the two lies below the highest logit, as a share of it.
    None for equal texts."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        assert len(one) == len(other)
        return None
    before = np.array([*prompt, *one[:at]], np.int32)
    logits = np.concatenate([paired(noise).logits(0, 0, before)])[-1]
    return float((logits.max() - min(logits[one[at]], logits[other[at]])) / np.abs(logits).max())


def requests() -> list[GenerationRequest]:
    draw = np.random.default_rng(5)
    made = []
    for _ in range(24):
        block = draw.integers(0, MAIN.vocab_size, 12).tolist()
        made.append(
            GenerationRequest([*block, *block[:5]], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        )
    return made


@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-4])
def test_every_difference_is_a_tie(noise: float) -> None:
    asked = requests()
    off, on = run(noise, asked, lookup=False), run(noise, asked, lookup=True)
    for request, one, other in zip(asked, off, on, strict=True):
        gap = tie_gap(noise, list(request.prompt), one, other)
        assert gap is None or gap < TOLERANCE


def test_a_difference_that_is_no_tie_is_seen() -> None:
    asked = requests()[:1]
    (text,) = run(1e-4, asked, lookup=False)
    other = [*text[:7], (text[7] + 2) % MAIN.vocab_size, *text[8:]]
    gap = tie_gap(1e-4, list(asked[0].prompt), text, other)
    assert gap is not None and gap > TOLERANCE
