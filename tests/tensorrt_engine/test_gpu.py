"""What a plan must do where it runs: on a GPU with ``pytest -m gpu``, and here on a session that evaluates the network.

Nothing below asks for more than a plan can promise: kernels are chosen for each shape, and TensorRT-RTX replaces them
while it runs, so two ways to compute one row may differ in rounding. Texts are chosen whose tokens are no near-ties.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trtbuild.network.acceptance import add_acceptance
from trtbuild.network.activation import folding_is_smaller
from trtbuild.network.cpu_session import CpuSession
from trtbuild.network.decoder import TORCH_DTYPES, NetworkShape, build_decoder
from trtbuild.network.interpreter import Interpreter
from trtbuild.network.plan import build_plan
from trtbuild.network.plugin_acceptance import add_plugin_acceptance
from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import StepInput
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.executor.tensorrt_session import Session
from trtserve.executor.torch import TorchExecutor
from trtserve.model_config import DecoderConfig
from trtserve.sampling import SamplingParams, SamplingState
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

from .models import VOCAB, config_of, random_weights

LIMITS = Limits(max_batch_size=4, max_seq_len=100, prefill_chunk=32)
SPECULATIVE = Speculative(prompt_lookup=PromptLookup(max_drafts=5, batch_max_drafts=3))
TIERS = plan_tiers(LIMITS, SPECULATIVE)
#: Nats by which half precision may differ from float32 on the same weights: rounding in the interpreter alone makes
#: 0.04 and 0.08. A token is a near-tie when another is as near.
TOLERANCE = {"float16": 0.1, "bfloat16": 0.3}
MODELS = [("llama", "float16"), ("qwen3", "bfloat16"), ("mistral", "float16"), ("qwen2", "float16")]
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(tensorrt_cuda.missing_gpu() is not None, reason="no GPU")]


class Pair(NamedTuple):
    engine: TensorRTExecutor
    reference: TorchExecutor
    """The same stored weights, computed in float32."""
    tolerance: float


def gpu_runtime() -> Any:
    name = tensorrt_cuda.runtime_for(tensorrt_cuda.capability_of(0))
    return pytest.importorskip(name, reason=f"{name} runs on this GPU and is not installed", exc_type=ImportError)


def gpu_session(
    config: DecoderConfig, weights: dict[str, torch.Tensor], folder: Path, *, plugin: bool = False
) -> tuple[Session, io.PlanInfo]:
    """A real plan, built and loaded here. ``plugin``: acceptance by the kernels, which full TensorRT alone has."""
    runtime = gpu_runtime()
    if plugin and runtime.__name__ != "tensorrt":
        pytest.skip("TensorRT-RTX has no plugins compiled ahead of time")
    info = info_of(config, runtime)
    acceptance = add_plugin_acceptance if plugin else add_acceptance
    shape = NetworkShape(info.cache_positions, info.fold_groups, acceptance)
    plan = build_plan(runtime, config, weights, shape, info.profiles)
    (folder / info.plan).write_bytes(memoryview(plan.data))
    return tensorrt_cuda.open_session(folder / info.plan, info, 0), info


def cpu_session(trt: Any, config: DecoderConfig, weights: dict[str, torch.Tensor]) -> tuple[Session, io.PlanInfo]:
    info = info_of(config, trt)
    network = trt.Builder(trt.Logger(trt.Logger.ERROR)).create_network(0)
    graph = build_decoder(trt, network, config, weights, NetworkShape(info.cache_positions, info.fold_groups))
    return CpuSession(Interpreter(trt, network, graph.constants), info.profiles), info


def info_of(config: DecoderConfig, runtime: Any) -> io.PlanInfo:
    positions, profiles = io.cache_positions(LIMITS, TIERS), io.profiles_for(TIERS)
    return io.PlanInfo(
        runtime=runtime.__name__,
        runtime_version=runtime.__version__,
        plan="decoder.plan",
        weights="plan",
        compute_capability=(),
        cache_positions=positions,
        fold_groups=folding_is_smaller(config, profiles, positions),
        profiles=profiles,
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((where, *model), marks=ON_GPU if where != "interpreter" else [], id="-".join((where, *model)))
        for where, models in (("interpreter", MODELS), ("gpu", MODELS), ("gpu with plugin", MODELS[:1]))
        for model in models
    ],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    where, architecture, dtype = request.param
    # Heads of 64: what an attention kernel is made for.
    config = config_of(architecture, dtype=dtype, head_dim=64, hidden_size=128)
    weights = {name: value.to(TORCH_DTYPES[dtype]) for name, value in random_weights(config).items()}
    if where != "interpreter":
        folder = tmp_path_factory.mktemp("plan")
        session, info = gpu_session(config, weights, folder, plugin=where == "gpu with plugin")
    else:
        session, info = cpu_session(request.getfixturevalue("trt"), config, weights)
    engine = TensorRTExecutor(config, LIMITS, TIERS, info, session)
    reference = TorchExecutor(config, list(weights.items()), LIMITS, TIERS)
    yield Pair(engine, reference, TOLERANCE[dtype])
    engine.close()
    reference.close()


def spoil(engine: TensorRTExecutor, slot: int) -> None:
    """Make the slot's first position of layer 0's keys NaN, in any dtype."""
    layout, session = engine._cache, engine._session
    ones = session.host_array((layout.position_bytes,), np.uint8)
    ones[:] = 0xFF
    session.upload(engine._cache_address + layout.part("k", 0) + slot * layout.slot_bytes, ones)


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


def fill(executor: TensorRTExecutor | TorchExecutor, slot: int, tokens: list[int]) -> None:
    for start in range(0, len(tokens), LIMITS.prefill_chunk):
        executor.prefill(slot, start, np.array(tokens[start : start + LIMITS.prefill_chunk], np.int32))


def clear_text(pair: Pair, prompt: int, count: int) -> list[int]:
    """A random prompt of that length and the ``count`` greedy tokens after it, none of them a near-tie."""
    for seed in range(2000):
        text = [random.Random(seed).randrange(VOCAB) for _ in range(prompt)]
        fill(pair.reference, 0, text[:-1])
        while len(text) < prompt + count:
            logits = pair.reference.logits(0, len(text) - 1, np.array(text[-1:], np.int32))[0]
            second, first = np.sort(logits)[-2:]
            if first - second <= 2 * pair.tolerance:
                break
            text.append(int(logits.argmax()))
        else:
            return text
    raise AssertionError(f"no text of {count} tokens without a near-tie")


def test_ragged_rounds_agree(pair: Pair) -> None:
    """Four rounds of scattered slots; every row's log-probabilities within the dtype's error of float32 arithmetic."""
    engine, reference, tolerance = pair
    rng = random.Random(3)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (40, 7, 21)]
    slots = [3, 0, 1]
    for executor in (engine, reference):
        for slot, text in zip(slots, texts, strict=True):
            fill(executor, slot, text[:-1])
    logprobs = SamplingParams(temperature=0, logprobs=20)
    for _ in range(4):
        truth = []
        for slot, text in zip(slots, texts, strict=True):
            logits = torch.from_numpy(reference.logits(slot, len(text) - 1, np.array(text[-1:], np.int32)))
            truth.append(logits.log_softmax(-1)[0])
        rows = [[text[-1], *(rng.randrange(VOCAB) for _ in range(i))] for i, text in enumerate(texts)]
        out = engine.step(batch_of(slots, [len(t) - 1 for t in texts], rows, logprobs))
        greedy = engine.step(batch_of(slots, [len(t) - 1 for t in texts], rows, SamplingParams(temperature=0)))
        begins = np.cumsum([0, *map(len, rows)])
        for b, text in enumerate(texts):
            entry = (out.logprobs[b] or [None])[0]
            assert entry is not None
            wanted = truth[b][torch.from_numpy(entry.top_tokens).long()].numpy()
            np.testing.assert_allclose(entry.top_values, wanted, atol=tolerance, rtol=0)
            for token in (int(out.targets[begins[b]]), int(greedy.targets[begins[b]])):
                assert float(truth[b].max() - truth[b][token]) <= tolerance
            text.append(int(out.targets[begins[b]]))
            reference.prefill(slots[b], len(text) - 2, np.array(text[-2:-1], np.int32))


def test_right_drafts_are_accepted_and_wrong_ones_are_not(pair: Pair) -> None:
    engine = pair.engine
    text = clear_text(pair, 5, 6)
    fill(engine, 2, text[:4])
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0, logprobs=1)):
        for right in range(6):
            drafts = [t if i < right else (t + 1) % VOCAB for i, t in enumerate(text[5:10])]
            out = engine.step(batch_of([2], [4], [[text[4], *drafts]], params))
            assert int(out.accepted[0]) == right
            assert out.targets[: right + 1].tolist() == text[5 : 6 + right]


def test_an_idle_neighbour_and_a_copied_prefix(pair: Pair) -> None:
    """Caches are updated where they lie, and only where they should be."""
    engine = pair.engine
    greedy = SamplingParams(temperature=0)
    text = clear_text(pair, LIMITS.max_seq_len, 1)
    wanted = text.pop()
    fill(engine, 1, text[:-1])
    last = batch_of([1], [len(text) - 1], [[text[-1]]], greedy)
    assert engine.step(last).targets.tolist() == [wanted]
    for _ in range(4):
        engine.step(batch_of([0, 2], [0, 0], [[3, 4, 5], [6]], greedy))
    assert engine.step(last).targets.tolist() == [wanted]
    engine.copy_prefix(1, 3, len(text) - 1)
    assert engine.step(last._replace(slots=np.array([3], np.int32))).targets.tolist() == [wanted]


def test_a_replayed_call_sees_new_inputs(pair: Pair) -> None:
    """The first enqueues run, later ones may be replayed: inputs and slots that change in between must be seen."""
    engine = pair.engine
    greedy = SamplingParams(temperature=0)
    texts = [clear_text(pair, n, 1) for n in (1, 2, 3)]
    for slot in (0, 2):
        for text in texts:
            fill(engine, slot, text[:-2])
            for i in range(6):
                # The same shape in another slot is another address: a graph must not be replayed with the old one.
                other = (slot + 1 + i % 2) % 4
                engine.step(batch_of([other], [0], [[7]], greedy))
                step = batch_of([slot], [len(text) - 2], [text[-2:-1]], greedy)
                assert engine.step(step).targets.tolist() == text[-1:]


def test_a_sequence_that_is_not_finite_fails_alone(pair: Pair) -> None:
    """What is not finite in one slot's cache stays there, and goes when the slot is used again."""
    engine = pair.engine
    greedy = SamplingParams(temperature=0)
    text = clear_text(pair, 6, 1)
    for slot in (0, 1):
        fill(engine, slot, text[:-2])
    spoil(engine, slot=1)
    out = engine.step(batch_of([0, 1], [5, 5], [text[-2:-1]] * 2, greedy))
    assert out.failed.tolist() == [False, True]
    assert int(out.targets[0]) == text[-1]
    fill(engine, 1, text[:-2])
    out = engine.step(batch_of([0, 1], [5, 5], [text[-2:-1]] * 2, greedy))
    assert out.failed.tolist() == [False, False]
    assert out.targets.tolist() == text[-1:] * 2


@pytest.mark.gpu
@pytest.mark.skipif(tensorrt_cuda.missing_gpu() is not None, reason="no GPU")
def test_compiled_kernels_are_kept_between_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runtime = gpu_runtime()
    if runtime.__name__ != "tensorrt_rtx":
        pytest.skip("full TensorRT compiles when it builds")
    config = config_of("llama", dtype="float16", head_dim=64, hidden_size=128)
    session, info = gpu_session(config, random_weights(config), tmp_path)
    session.close()
    for _ in range(2):
        tensorrt_cuda.open_session(
            tmp_path / info.plan, info, 0, kernels=tmp_path / "kernels", plan_digest="ab"
        ).close()
        (file,) = (tmp_path / "kernels").iterdir()
        assert file.stat().st_size > 0
    assert "ignored" not in caplog.text  # the second start took what the first one left
