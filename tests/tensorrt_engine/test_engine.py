"""The real scheduler and drafter over the TensorRT executor: text is what the torch target writes, lookup on or off."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from trtbuild.network.cpu_session import CpuSession
from trtbuild.network.decoder import NetworkShape, build_decoder
from trtbuild.network.interpreter import Interpreter
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, GenerationRequest
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import Executor
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.executor.torch import TorchExecutor
from trtserve.lookup.drafter import Drafter
from trtserve.sampling import SamplingParams
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

from .models import VOCAB, config_of, random_weights

LIMITS = Limits(max_batch_size=4, max_seq_len=96, prefill_chunk=16)
LOOKUP = PromptLookup(ngram=2, min_match=2, max_drafts=6, batch_max_drafts=3, max_seqs=3)
SPECULATIVE = Speculative(prompt_lookup=LOOKUP)
TIERS = plan_tiers(LIMITS, SPECULATIVE)
CONFIG = config_of("qwen3", num_layers=1)


class Numbers:
    """A tokenizer whose text is the tokens' numbers."""

    def stream_decoder(self) -> Numbers:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return "".join(f"{i} " for i in ids)

    def flush(self) -> str:
        return ""


def tensorrt_executor(trt: Any) -> Executor:
    positions = io.cache_positions(LIMITS, TIERS)
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    graph = build_decoder(trt, network, CONFIG, random_weights(CONFIG), NetworkShape(positions))
    plan = io.PlanInfo(
        runtime="tensorrt_rtx",
        runtime_version=trt.__version__,
        plan="decoder.plan",
        weights="plan",
        compute_capability=(),
        cache_positions=positions,
        fold_groups=True,
        profiles=io.profiles_for(TIERS),
    )
    session = CpuSession(Interpreter(trt, network, graph.constants), plan.profiles)
    return TensorRTExecutor(CONFIG, LIMITS, TIERS, plan, session)


def torch_executor(trt: Any) -> Executor:
    return TorchExecutor(CONFIG, list(random_weights(CONFIG).items()), LIMITS, TIERS)


@pytest.fixture
def engine_of(trt: Any) -> Iterator[Callable[..., LocalEngine]]:
    engines: list[LocalEngine] = []

    def make(executor: Callable[[Any], Executor], *, lookup: bool) -> LocalEngine:
        manifest = Manifest(
            name="tiny",
            target="tensorrt",
            model=CONFIG,
            tokenizer=TokenizerRecord(vocab_size=VOCAB, eos_token_ids=(0,)),
            limits=LIMITS,
            speculative=SPECULATIVE,
            tiers=TIERS,
            inputs_digest="0" * 64,
            weights_digest="1" * 64,
            tokenizer_digest="2" * 64,
            built_with={},
        )
        drafter = Drafter(LOOKUP) if lookup else None
        engines.append(LocalEngine(executor(trt), drafter, Numbers(), manifest))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def requests() -> list[GenerationRequest]:
    """Prompts that repeat themselves, greedy and sampled, with and without penalties and log-probabilities."""
    rng = random.Random(8)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.7, "seed": 11, "top_k": 12},
        {"temperature": 0, "logprobs": 2},
        {"temperature": 0, "frequency_penalty": 0.4},
        {"temperature": 1.2, "seed": 5, "min_p": 0.05},
    ]
    made = []
    for i in range(10):
        piece = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(3, 8))]
        prompt = (piece * 8)[: rng.randrange(1, 50)]
        params = SamplingParams(max_tokens=rng.randrange(8, 30), ignore_eos=i % 2 == 0, **kinds[i % len(kinds)])
        made.append(GenerationRequest(prompt, params))
    return made


def collect(generation: Any) -> Completion:
    done = Completion.collect(generation)
    assert done.finish.reason in ("stop", "length"), done.finish.error
    return done


def run(engine: LocalEngine, *, together: bool) -> list[Completion]:
    if not together:
        return [collect(engine.submit(r)) for r in requests()]
    return [collect(g) for g in [engine.submit(r) for r in requests()]]


def tokens(done: Sequence[Completion]) -> list[list[int]]:
    return [[t.token for t in d.tokens] for d in done]


@pytest.mark.parametrize("together", [False, True])
def test_text_is_the_torch_targets_with_lookup_on_and_off(
    engine_of: Callable[..., LocalEngine], together: bool
) -> None:
    wanted = tokens(run(engine_of(torch_executor, lookup=False), together=False))
    off = run(engine_of(tensorrt_executor, lookup=False), together=together)
    engine = engine_of(tensorrt_executor, lookup=True)
    on = run(engine, together=together)
    assert tokens(off) == wanted
    assert tokens(on) == wanted
    metrics = engine.metrics()
    assert metrics["accepted_tokens_total"]["history"] > 0
    assert metrics["rounds_total"] < sum(map(len, wanted))
    for with_lookup, without in zip(on, off, strict=True):
        for a, b in zip(with_lookup.tokens, without.tokens, strict=True):
            assert [t for t, _ in a.top_logprobs] == [t for t, _ in b.top_logprobs]
            np.testing.assert_allclose(
                [v for _, v in a.top_logprobs], [v for _, v in b.top_logprobs], atol=1e-4, rtol=0
            )
