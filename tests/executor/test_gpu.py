"""The torch target on a CUDA device: the same decoder in torch operators, against the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trtserve.executor.base import StepInput
from trtserve.sampling import SamplingParams, SamplingState

from .tiny import SHAPES, config, executor, ints, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_the_cpu(shape: str) -> None:
    c = config(shape)
    text = tokens(c, 300)
    cpu, cuda = executor(c), executor(c, device="cuda")
    for e in (cpu, cuda):
        e.prefill(2, 0, text[:200])
    expected, actual = cpu.logits(2, 200, text[200:]), cuda.logits(2, 200, text[200:])
    assert np.abs(expected - actual).max() < 2e-3 * max(1.0, np.abs(expected).max())


def test_a_ragged_step_accepts_what_the_cpu_accepts() -> None:
    c = config()
    prompts = [tokens(c, n, seed=n) for n in (40, 3, 90)]
    outcomes = []
    for e in (executor(c), executor(c, device="cuda")):
        states = []
        for slot, prompt in enumerate(prompts):
            if len(prompt) > 1:
                e.prefill(slot, 0, prompt[:-1])
            states.append(SamplingState.start(SamplingParams(temperature=0), prompt, c.vocab_size, ()))
        lengths = np.array([len(p) - 1 for p in prompts], np.int32)
        last = np.array([p[-1] for p in prompts], np.int32)
        first = e.step(StepInput(ints(0, 1, 2), lengths, ints(1, 1, 1), last, states))
        # The first sequence drafts what it will say next, the second something it will not.
        rows = np.concatenate(([last[0], first.targets[0]], [last[1], (first.targets[1] + 1) % 307], [last[2]]))
        out = e.step(StepInput(ints(0, 1, 2), lengths, ints(2, 2, 1), rows.astype(np.int32), states))
        outcomes.append((first.targets.tolist(), out.accepted.tolist(), out.targets[0], out.failed.tolist()))
        e.close()
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == [1, 0, 0]
