"""Plans that run: on a machine with a GPU, ``pytest -m gpu``. The comparisons are those of the CPU session's tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtbuild.network.activation import folding_is_smaller
from trtbuild.network.decoder import TORCH_DTYPES, NetworkShape
from trtbuild.network.plan import build_plan
from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import StepInput
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams, SamplingState
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

from .models import VOCAB, config_of, random_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(tensorrt_cuda.missing_gpu() is not None, reason="no GPU"),
]

LIMITS = Limits(max_batch_size=4, max_seq_len=100, prefill_chunk=32)
SPECULATIVE = Speculative(prompt_lookup=PromptLookup(max_drafts=5, batch_max_drafts=3))
TIERS = plan_tiers(LIMITS, SPECULATIVE)
TOLERANCE = {"float16": 0.05, "bfloat16": 0.4}


@pytest.fixture(scope="module")
def runtime() -> Any:
    """What runs on this GPU: full TensorRT on Hopper and datacenter Blackwell, TensorRT-RTX elsewhere."""
    core = pytest.importorskip("cuda.core")
    device = core.Device(0)
    device.set_current()
    return pytest.importorskip("tensorrt" if device.compute_capability[0] in (9, 10) else "tensorrt_rtx")


@pytest.fixture(params=[("llama", "float16"), ("qwen3", "bfloat16"), ("mistral", "float16"), ("qwen2", "float16")])
def pair(
    request: pytest.FixtureRequest, runtime: Any, tmp_path: Path
) -> Iterator[tuple[TensorRTExecutor, TorchExecutor, float]]:
    """The executor of a real plan on the GPU, and the torch executor of the same stored weights on the CPU."""
    architecture, dtype = request.param
    # Heads of 64: what an attention kernel is made for.
    config = config_of(architecture, dtype=dtype, head_dim=64, hidden_size=128)
    weights = {name: value.to(TORCH_DTYPES[dtype]) for name, value in random_weights(config).items()}
    positions, profiles = io.cache_positions(LIMITS, TIERS), io.profiles_for(TIERS)
    fold = folding_is_smaller(config, profiles, positions)
    plan = build_plan(runtime, config, weights, NetworkShape(positions, fold), profiles)
    (tmp_path / "decoder.plan").write_bytes(memoryview(plan.data))
    info = io.PlanInfo(
        runtime=runtime.__name__,
        runtime_version=runtime.__version__,
        plan="decoder.plan",
        weights="plan",
        compute_capability=(),
        cache_positions=positions,
        fold_groups=fold,
        profiles=profiles,
    )
    session = tensorrt_cuda.open_session(tmp_path / "decoder.plan", info, 0)
    engine = TensorRTExecutor(config, LIMITS, TIERS, info, session)
    reference = TorchExecutor(config, list(weights.items()), LIMITS, TIERS)
    yield engine, reference, TOLERANCE[dtype]
    engine.close()
    reference.close()


def state(params: SamplingParams) -> SamplingState:
    return SamplingState.start(params, np.array([1], np.int32), VOCAB, ())


def batch_of(slots: list[int], lengths: list[int], rows: list[list[int]], params: SamplingParams) -> StepInput:
    return StepInput(
        np.array(slots, np.int32),
        np.array(lengths, np.int32),
        np.array([len(r) for r in rows], np.int32),
        np.array([t for r in rows for t in r], np.int32),
        [state(params)] * len(slots),
    )


def test_ragged_rounds_agree(pair: tuple[TensorRTExecutor, TorchExecutor, float]) -> None:
    """Four rounds of scattered slots; every row's log-probabilities within the dtype's error of float32 arithmetic."""
    engine, reference, tolerance = pair
    rng = random.Random(3)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (40, 7, 21)]
    slots = [3, 0, 1]
    for executor in (engine, reference):
        for slot, text in zip(slots, texts, strict=True):
            for start in range(0, len(text) - 1, LIMITS.prefill_chunk):
                part = text[start : min(start + LIMITS.prefill_chunk, len(text) - 1)]
                executor.prefill(slot, start, np.array(part, np.int32))
    logprobs = SamplingParams(temperature=0, logprobs=20)
    for _ in range(4):
        truth = []
        for slot, text in zip(slots, texts, strict=True):
            logits = torch.from_numpy(reference.logits(slot, len(text) - 1, np.array(text[-1:], np.int32)))
            truth.append(logits.log_softmax(-1)[0])
        rows = [[text[-1], *(rng.randrange(VOCAB) for _ in range(i))] for i, text in enumerate(texts)]
        out = engine.step(batch_of(slots, [len(t) - 1 for t in texts], rows, logprobs))
        greedy = engine.step(batch_of(slots, [len(t) - 1 for t in texts], rows, SamplingParams(temperature=0)))
        assert out.accepted.tolist() == greedy.accepted.tolist()
        begins = np.cumsum([0, *map(len, rows)])
        for b, text in enumerate(texts):
            entry = (out.logprobs[b] or [None])[0]
            assert entry is not None
            wanted = truth[b][torch.from_numpy(entry.top_tokens).long()].numpy()
            np.testing.assert_allclose(entry.top_values, wanted, atol=tolerance, rtol=0)
            token = int(out.targets[begins[b]])
            assert token == int(greedy.targets[begins[b]])
            assert float(truth[b].max() - truth[b][token]) <= tolerance
            text.append(token)
            reference.prefill(slots[b], len(text) - 2, np.array(text[-2:-1], np.int32))


def test_right_drafts_are_accepted_and_wrong_ones_are_not(pair: tuple[TensorRTExecutor, TorchExecutor, float]) -> None:
    engine, _, _ = pair
    greedy = SamplingParams(temperature=0)
    prompt = [5, 9, 2, 30, 11]
    engine.prefill(2, 0, np.array(prompt[:-1], np.int32))
    text = [*prompt]
    for _ in range(6):
        out = engine.step(batch_of([2], [len(text) - 1], [[text[-1]]], greedy))
        text.append(int(out.targets[0]))
    for right in range(6):
        drafts = [t if i < right else (t + 1) % VOCAB for i, t in enumerate(text[5:10])]
        out = engine.step(batch_of([2], [4], [[prompt[-1], *drafts]], greedy))
        assert int(out.accepted[0]) == min(right, 5)


def test_an_idle_neighbour_and_a_copied_prefix(pair: tuple[TensorRTExecutor, TorchExecutor, float]) -> None:
    """Caches are updated where they lie, and only where they should be."""
    engine, _, _ = pair
    greedy = SamplingParams(temperature=0)
    rng = random.Random(4)
    text = [rng.randrange(VOCAB) for _ in range(LIMITS.max_seq_len)]
    for start in range(0, len(text) - 1, LIMITS.prefill_chunk):
        engine.prefill(1, start, np.array(text[start : min(start + LIMITS.prefill_chunk, len(text) - 1)], np.int32))
    last = batch_of([1], [len(text) - 1], [[text[-1]]], greedy)
    wanted = engine.step(last).targets.tolist()
    for _ in range(4):
        engine.step(batch_of([0, 2], [0, 0], [[3, 4, 5], [6]], greedy))
    assert engine.step(last).targets.tolist() == wanted
    engine.copy_prefix(1, 3, len(text) - 1)
    assert engine.step(last._replace(slots=np.array([3], np.int32))).targets.tolist() == wanted


def test_a_replayed_call_sees_new_inputs(
    pair: tuple[TensorRTExecutor, TorchExecutor, float],
) -> None:
    """The first enqueues run, later ones may be replayed: inputs that change in between must be seen."""
    engine, _, _ = pair
    greedy = SamplingParams(temperature=0)
    seen = {}
    for i in range(12):
        token = 3 + i % 4
        got = engine.step(batch_of([0], [0], [[token]], greedy)).targets.tolist()
        assert seen.setdefault(token, got) == got
    assert len({tuple(v) for v in seen.values()}) > 1
