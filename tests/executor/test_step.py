"""The step contract: acceptance, sampling states, logprobs, failures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trtserve.executor.base import StepInput, StepOutput
from trtserve.executor.logprobs import token_logprobs
from trtserve.executor.sampling_arrays import sampling_arrays
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams, SamplingState

from .tiny import config, executor, ints, tokens, weights

C = config()
PROMPT = tokens(C, 30)


def state(prompt: NDArray[np.int32] = PROMPT, **params: Any) -> SamplingState:
    return SamplingState.start(SamplingParams(**{"temperature": 0, **params}), prompt, C.vocab_size, (1,))


def round_of(e: TorchExecutor, slot: int, length: int, rows: NDArray[np.int32], s: SamplingState) -> StepOutput:
    return e.step(StepInput(ints(slot), ints(length), ints(len(rows)), rows, [s]))


def generate(e: TorchExecutor, slot: int, n: int, s: SamplingState) -> list[int]:
    """n tokens, one row a round."""
    e.prefill(slot, 0, PROMPT[:-1])
    text = PROMPT.tolist()
    for _ in range(n):
        out = round_of(e, slot, len(text) - 1, ints(text[-1]), s)
        text.append(int(out.targets[0]))
        s.commit(out.targets[:1])
    return text[len(PROMPT) :]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("right", [0, 1, 3, 8])
def test_drafts_are_accepted_up_to_the_first_that_differs(right: int, native: bool) -> None:
    e = executor(C, native=native)
    plain = generate(e, 0, 9, state())
    drafts = plain[:8]
    if right < 8:
        drafts[right] = (drafts[right] + 1) % C.vocab_size
    e.prefill(1, 0, PROMPT[:-1])
    out = round_of(e, 1, len(PROMPT) - 1, ints(PROMPT[-1], *drafts), state())
    assert out.accepted.tolist() == [right]
    assert out.targets[: right + 1].tolist() == plain[: right + 1]
    assert out.failed.tolist() == [False]
    assert list(out.logprobs) == [None]
    # What was rejected is overwritten by the next round.
    text = [*PROMPT.tolist(), *plain[: right + 1]]
    if right < 8:
        again = round_of(e, 1, len(text) - 1, ints(text[-1], *plain[right + 1 : 8]), state())
        assert again.targets.tolist() == plain[right + 1 : 9]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "seed": 5},
        {"temperature": 1.3, "seed": 6, "top_p": 0.7, "top_k": 40, "min_p": 0.01},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0.9, "seed": 7, "logit_bias": {3: 6.0, 4: -100.0}, "min_tokens": 4},
    ],
)
def test_a_sampled_text_does_not_depend_on_the_rows(params: dict[str, Any]) -> None:
    e = executor(C)
    plain = generate(e, 0, 9, state(**params))
    e.prefill(1, 0, PROMPT[:-1])
    out = round_of(e, 1, len(PROMPT) - 1, ints(PROMPT[-1], *plain[:8]), state(**params))
    assert out.accepted.tolist() == [8]
    assert out.targets.tolist() == plain


def test_a_batch_of_different_sequences() -> None:
    e = executor(C)
    states = [state(), state(temperature=0.8, seed=3, logprobs=2), state(logprobs=0)]
    alone = []
    for slot, s in enumerate(states):
        e.prefill(slot, 0, PROMPT[:-1])
        alone.append(round_of(e, slot, len(PROMPT) - 1, ints(PROMPT[-1]), s))
    rows = [ints(PROMPT[-1]), ints(PROMPT[-1], 5, 6), ints(PROMPT[-1], int(alone[2].targets[0]))]
    batch = StepInput(ints(0, 1, 2), ints(*[len(PROMPT) - 1] * 3), ints(1, 3, 2), np.concatenate(rows), states)
    out = e.step(batch)
    for i, at in enumerate(batch.offsets[:-1]):
        assert out.targets[at] == alone[i].targets[0]
    assert out.accepted[2] == 1
    assert out.logprobs[0] is None
    assert [len(entries) for entries in out.logprobs[1:] if entries is not None] == [out.accepted[1] + 1, 2]
    assert out.logprobs[1] is not None and alone[1].logprobs[0] is not None
    assert out.logprobs[1][0].chosen == alone[1].logprobs[0][0].chosen


def test_logprobs_are_of_the_raw_logits() -> None:
    e = executor(C)
    s = state(logprobs=4, logit_bias={9: 100.0}, temperature=0.5, seed=1)
    e.prefill(0, 0, PROMPT[:-1])
    out = round_of(e, 0, len(PROMPT) - 1, PROMPT[-1:], s)
    expected = torch.log_softmax(torch.from_numpy(e.logits(1, 0, PROMPT)[-1]), -1)
    assert out.targets[0] == 9 and out.logprobs[0] is not None
    entry = out.logprobs[0][0]
    assert entry.chosen == pytest.approx(float(expected[9]), abs=1e-5)
    values, order = expected.topk(4)
    assert entry.top_tokens.tolist() == order.tolist()
    assert np.allclose(entry.top_values, values.numpy(), atol=1e-6)


def test_equal_logprobs_are_listed_by_ascending_token() -> None:
    logits = np.zeros((2, 9), np.float32)
    logits[0, [7, 2]] = 1.0
    first, second = token_logprobs(logits, ints(2, -1), 4)
    assert first.top_tokens.tolist() == [2, 7, 0, 1]
    assert first.top_values[0] == first.top_values[1] == np.float32(first.chosen)
    assert math.isnan(second.chosen) and len(second.top_tokens) == 0
    assert len(token_logprobs(logits[:1], ints(2), 0)[0].top_tokens) == 0
    assert len(token_logprobs(logits[:1], ints(2), 20)[0].top_tokens) == 9


def test_a_row_without_finite_logits_fails_its_own_sequence() -> None:
    c = config("untied")
    tensors = weights(c)
    tensors["embed"][7] = float("nan")
    e = executor(c, tensors=tensors)
    rows = np.concatenate((ints(7), ints(8, 9)))
    out = e.step(StepInput(ints(0, 1), ints(0, 0), ints(1, 2), rows, [state(logprobs=1), state()]))
    assert out.failed.tolist() == [True, False]
    assert out.targets[0] == -1 and out.targets[1] >= 0
    assert out.logprobs[0] is not None and math.isnan(out.logprobs[0][0].chosen)


def test_a_draft_without_finite_logits_fails_only_when_its_row_decides() -> None:
    c = config("untied")
    tensors = weights(c)
    tensors["embed"][7] = float("nan")
    e = executor(c, tensors=tensors)
    first = int(e.step(StepInput(ints(0), ints(0), ints(1), ints(8), [state()])).targets[0])
    assert first != 7
    out = e.step(StepInput(ints(1), ints(0), ints(2), ints(8, 7), [state()]))
    assert out.failed.tolist() == [False] and out.targets[0] == first and out.accepted[0] == 0


def test_sampling_arrays_follow_the_states() -> None:
    assert sampling_arrays([state(), state()]) is None
    s = state(
        temperature=0.5, seed=-1, top_k=3, min_tokens=5, logit_bias={4: 1.5, 2: -100}, presence_penalty=1.0, top_p=0.9
    )
    s.commit(ints(6, 6))
    arrays = sampling_arrays([state(), s])
    assert arrays is not None and s.counts is not None
    assert arrays.temperature.tolist() == [0, 0.5]
    assert arrays.seed.tolist()[1] == (1 << 64) - 1
    assert arrays.position.tolist() == [len(PROMPT), len(PROMPT) + 2]
    assert arrays.counts.tolist() == [0, s.counts.ctypes.data]
    assert arrays.num_bias.tolist() == [0, 2] and arrays.bias_tokens.tolist() == [0, s.bias_tokens.ctypes.data]
    assert arrays.ban_rows.tolist() == [0, 3] and arrays.num_ban.tolist() == [0, 1]
    assert arrays.mask.tolist() == [0, 0]
