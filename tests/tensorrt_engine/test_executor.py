"""The executor's host logic over a session that evaluates the network: the step contract, beside the torch executor."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from trtbuild.network.cpu_session import CpuSession
from trtbuild.network.decoder import NetworkShape, build_decoder
from trtbuild.network.interpreter import Interpreter
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import ExecutorError, StepInput, StepOutput
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.executor.tensorrt_session import Session
from trtserve.executor.torch import TorchExecutor
from trtserve.model_config import DecoderConfig
from trtserve.sampling import SamplingParams, SamplingState
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

from .fake_gpu import FakeGpu
from .models import ARCHITECTURES, VOCAB, config_of, random_weights

LIMITS = Limits(max_batch_size=6, max_seq_len=56, prefill_chunk=16)
SPECULATIVE = Speculative(prompt_lookup=PromptLookup(max_drafts=5, batch_max_drafts=2, max_seqs=4))
TIERS = plan_tiers(LIMITS, SPECULATIVE)
GREEDY = SamplingParams(temperature=0)


class Pair:
    """A TensorRT executor over the interpreter, and the torch executor of the same weights."""

    def __init__(
        self,
        trt: Any,
        device: Literal["interpreter", "tensorrt", "tensorrt_rtx"],
        open_fake: Callable[[FakeGpu, io.PlanInfo], Session],
        config: DecoderConfig,
        weights: dict[str, Any] | None = None,
    ) -> None:
        weights = random_weights(config) if weights is None else weights
        positions = io.cache_positions(LIMITS, TIERS)
        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        graph = build_decoder(trt, network, config, weights, NetworkShape(positions))
        self.plan = io.PlanInfo(
            runtime="tensorrt_rtx",
            runtime_version=trt.__version__,
            plan="decoder.plan",
            weights="plan",
            compute_capability=(),
            cache_positions=positions,
            fold_groups=True,
            profiles=io.profiles_for(TIERS),
        )
        interpreter = Interpreter(trt, network, graph.constants)
        if device == "interpreter":
            self.device: CpuSession | FakeGpu = CpuSession(interpreter, self.plan.profiles)
            session: Session = self.device
        else:
            self.plan = self.plan.model_copy(update={"runtime": device})
            self.device = FakeGpu(interpreter, self.plan.profiles, runtime=device, version=trt.__version__)
            session = open_fake(self.device, self.plan)
        self.tensorrt = TensorRTExecutor(config, LIMITS, TIERS, self.plan, session)
        self.torch = TorchExecutor(config, list(weights.items()), LIMITS, TIERS)

    def prefill(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        for executor in (self.tensorrt, self.torch):
            executor.prefill(slot, start, np.array(tokens, np.int32))

    def step(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        rows: Sequence[Sequence[int]],
        sampling: Sequence[SamplingState] | None = None,
    ) -> tuple[StepOutput, StepOutput]:
        batch = StepInput(
            slots=np.array(slots, np.int32),
            lengths=np.array(lengths, np.int32),
            num_rows=np.array([len(r) for r in rows], np.int32),
            tokens=np.concatenate([np.array(r, np.int32) for r in rows]),
            sampling=[state(GREEDY)] * len(rows) if sampling is None else sampling,
        )
        return self.tensorrt.step(batch), self.torch.step(batch)

    def close(self) -> None:
        self.tensorrt.close()
        self.torch.close()


def state(params: SamplingParams, prompt: Sequence[int] = (1, 2, 3)) -> SamplingState:
    return SamplingState.start(params, np.array(prompt, np.int32), VOCAB, (0, 5))


@pytest.fixture(params=["interpreter", "tensorrt_rtx", "tensorrt"])
def pair_of(
    trt: Any, request: pytest.FixtureRequest, open_fake: Callable[[FakeGpu, io.PlanInfo], Session]
) -> Iterator[Callable[..., Pair]]:
    """Pairs over each session: the interpreter's own, and the GPU's over a fake of each runtime."""
    made: list[Pair] = []

    def make(config: DecoderConfig, weights: dict[str, Any] | None = None) -> Pair:
        made.append(Pair(trt, request.param, open_fake, config, weights))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def emitted(out: StepOutput, b: int, num_rows: Sequence[int]) -> list[int]:
    begin = sum(num_rows[:b])
    return [int(t) for t in out.targets[begin : begin + int(out.accepted[b]) + 1]]


def assert_same(got: StepOutput, wanted: StepOutput, num_rows: Sequence[int]) -> None:
    assert got.accepted.tolist() == wanted.accepted.tolist()
    assert got.failed.tolist() == wanted.failed.tolist()
    for b in range(len(num_rows)):
        assert emitted(got, b, num_rows) == emitted(wanted, b, num_rows)
        mine, theirs = got.logprobs[b], wanted.logprobs[b]
        assert (mine is None) == (theirs is None)
        for x, y in zip(mine or (), theirs or (), strict=True):
            assert x.chosen == pytest.approx(y.chosen, abs=1e-4)
            assert x.top_tokens.tolist() == y.top_tokens.tolist()
            np.testing.assert_allclose(x.top_values, y.top_values, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_agree_with_the_torch_executor(pair_of: Callable[..., Pair], architecture: str) -> None:
    """Sequences of other lengths in scattered slots; drafts of which some are right; greedy and sampled together."""
    pair = pair_of(config_of(architecture))
    rng = random.Random(architecture)
    slots = [4, 0, 3, 1]
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (13, 4, 20, 7)]
    params = [
        GREEDY,
        SamplingParams(temperature=0.9, top_k=20, top_p=0.9, seed=3),
        SamplingParams(temperature=0, logprobs=4),
        SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5),
    ]
    states = [state(p, text) for p, text in zip(params, texts, strict=True)]
    for slot, text in zip(slots, texts, strict=True):
        body = text[:-1]
        for start in range(0, len(body), LIMITS.prefill_chunk):
            pair.prefill(slot, start, body[start : start + LIMITS.prefill_chunk])
    for round_ in range(8):
        active = [b for b in range(4) if rng.random() < 0.8] or [2]
        most = pair.tensorrt.info.max_rows(len(active))
        rows = []
        for b in active:
            probe = pair.torch.logits(5, 0, np.array(texts[b][-12:], np.int32))  # plausible drafts, from a spare slot
            guess = [int(probe[-1].argmax()), *(rng.randrange(VOCAB) for _ in range(8))]
            rows.append([texts[b][-1], *guess[: rng.randrange(most)]])
        got, wanted = pair.step(
            [slots[b] for b in active], [len(texts[b]) - 1 for b in active], rows, [states[b] for b in active]
        )
        assert_same(got, wanted, [len(r) for r in rows])
        for i, b in enumerate(active):
            tokens = emitted(got, i, [len(r) for r in rows])
            texts[b].extend(tokens)
            states[b].commit(np.array(tokens, np.int32))
        assert round_ >= 0


def test_drafts_that_are_right_are_accepted(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(config_of("llama"))
    text = [9, 8, 7, 6]
    pair.prefill(2, 0, text[:-1])
    truth = []
    for _ in range(6):
        got, wanted = pair.step([2], [len(text) - 1], [[text[-1]]])
        assert_same(got, wanted, [1])
        truth.append(int(got.targets[0]))
        text.append(truth[-1])
    pair.prefill(3, 0, [9, 8, 7])
    got, wanted = pair.step([3], [3], [[6, *truth[:5]]])
    assert_same(got, wanted, [6])
    assert got.accepted.tolist() == [5]
    assert got.targets.tolist() == truth


def test_a_greedy_round_reads_integers_and_waits_once(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(config_of("llama"))
    pair.prefill(0, 0, [1, 2, 3])
    before = pair.device.synchronizations
    pair.prefill(1, 0, [1, 2, 3])
    assert pair.device.synchronizations == before  # a prefill waits for nothing
    pair.step([0], [3], [[4, 5]])
    assert pair.device.synchronizations == before + 1
    assert not pair.plan.profiles[pair.device.launches[-1]].logits
    pair.step([0], [4], [[4]], [state(SamplingParams(temperature=0.5, seed=1))])
    assert pair.plan.profiles[pair.device.launches[-1]].logits


def test_neighbouring_slots_share_one_enqueue_and_distant_ones_do_not(pair_of: Callable[..., Pair]) -> None:
    """Two sequences with drafts, five slots apart: the copy tier takes four slots, so each runs alone."""
    pair = pair_of(config_of("llama"))
    for slots, enqueues in (([1, 2], 1), ([0, 3], 1), ([0, 5], 2), ([5, 0, 2], 2)):
        before = len(pair.device.launches)
        got, wanted = pair.step(slots, [0] * len(slots), [[3, 4, 5]] * len(slots))
        assert_same(got, wanted, [3] * len(slots))
        assert len(pair.device.launches) - before == enqueues


def test_an_idle_slot_between_two_active_ones_keeps_its_cache(pair_of: Callable[..., Pair]) -> None:
    """Slot 1 is full to its last position; rounds of its neighbours write rows past it, into the scratch."""
    pair = pair_of(config_of("qwen2"))
    rng = random.Random(5)
    text = [rng.randrange(VOCAB) for _ in range(LIMITS.max_seq_len)]
    for start in range(0, LIMITS.max_seq_len - 1, LIMITS.prefill_chunk):
        end = min(start + LIMITS.prefill_chunk, LIMITS.max_seq_len - 1)
        pair.prefill(1, start, text[start:end])
    for _ in range(3):
        got, wanted = pair.step([0, 2], [0, 0], [[3, 4, 5], [6, 7]])
        assert_same(got, wanted, [3, 2])
    got, wanted = pair.step([1], [LIMITS.max_seq_len - 1], [[text[-1]]])
    assert_same(got, wanted, [1])


def test_copied_prefixes_continue_like_their_source(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(config_of("mixed_windows"))
    text = list(range(3, 19))
    pair.prefill(4, 0, text)
    for executor in (pair.tensorrt, pair.torch):
        executor.copy_prefix(4, 1, 11)
    close = [state(SamplingParams(temperature=0, logprobs=5))]  # values, so that one wrong position shows
    got, wanted = pair.step([1], [11], [[30, 31]], close)
    assert_same(got, wanted, [2])
    again, _ = pair.step([4], [11], [[30, 31]], close)
    assert again.targets.tolist() == got.targets.tolist()


def test_a_failed_sequence_leaves_nothing_behind(pair_of: Callable[..., Pair]) -> None:
    """NaN keys and values of a failed sequence must not reach the slot's next one, even through masked positions."""
    config = config_of("llama", tie_word_embeddings=False)
    weights = random_weights(config)
    weights["embed"][7] = float("nan")
    pair = pair_of(config, weights)
    pair.prefill(0, 0, [1, 2, 7, 7, 7, 7, 7])
    pair.prefill(1, 0, [1, 2])
    for _ in range(2):
        got, _ = pair.step([0, 1], [7, 2], [[7], [3]])
        assert got.failed.tolist() == [True, False]
        assert got.targets[0] == -1
        got, wanted = pair.step([0], [0], [[6]])  # a prompt of one token needs no prefill
        assert_same(got, wanted, [1])
        assert not got.failed[0]
        pair.prefill(0, 0, [1, 2, 7, 7, 7, 7, 7])
    got, _ = pair.step([0, 1], [7, 2], [[7], [3]])
    pair.prefill(0, 0, [4, 5])
    got, _ = pair.step([0, 1], [2, 2], [[6], [6]])
    pair.prefill(2, 0, [4, 5])
    fresh, _ = pair.step([2], [2], [[6]])
    assert got.failed.tolist() == [False, False]
    assert got.targets[0] == fresh.targets[0]


def test_many_prefills_in_a_row_keep_their_inputs_apart(pair_of: Callable[..., Pair]) -> None:
    """More uploads than there are staging buffers, with nothing that waits in between."""
    pair = pair_of(config_of("llama"))
    rng = random.Random(6)
    texts = [[rng.randrange(VOCAB) for _ in range(30)] for _ in range(3)]
    for i in range(29):
        for slot, text in enumerate(texts):
            pair.prefill(slot, i, text[i : i + 1])
    got, wanted = pair.step([0, 1, 2], [29] * 3, [[t[-1]] for t in texts])
    assert_same(got, wanted, [1, 1, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.prefill(9, 0, ints(1)), r"slot 9; allowed: 0 to 5"),
        (lambda e: e.prefill(0, 0, ints(*range(17))), r"prefill of 17 tokens; allowed: 1 to 16"),
        (lambda e: e.prefill(0, 50, ints(*range(10))), r"10 rows from position 50; it holds 56"),
        (lambda e: e.step(step([0, 0], [[1], [1]])), r"names a slot twice: \[0, 0\]"),
        (lambda e: e.step(step([0], [[1] * 7])), r"7 rows for each of 1 sequences; allowed: 1 to 6"),
        (lambda e: e.step(step([0, 1], [[1] * 4, [1]])), r"4 rows for each of 2 sequences; allowed: 1 to 3"),
        (lambda e: e.step(step([], [])), r"step of no sequences"),
        (lambda e: e.copy_prefix(0, 1, 57), r"57 positions; allowed: 0 to 56"),
    ],
)
def test_calls_outside_the_contract_are_refused(
    pair_of: Callable[..., Pair], call: Callable[[TensorRTExecutor], None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(pair_of(config_of("llama")).tensorrt)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def step(slots: Sequence[int], rows: Sequence[Sequence[int]]) -> StepInput:
    tokens = ints(*(token for row in rows for token in row))
    return StepInput(ints(*slots), ints(*[0] * len(slots)), ints(*map(len, rows)), tokens, [state(GREEDY)])


def test_a_closed_executor_says_so(pair_of: Callable[..., Pair]) -> None:
    executor = pair_of(config_of("llama")).tensorrt
    executor.close()
    executor.close()
    with pytest.raises(ExecutorError, match="closed"):
        executor.prefill(0, 0, ints(1))
