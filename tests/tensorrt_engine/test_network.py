"""The network, evaluated layer by layer, against an independent decoder: logits, cache contents and acceptance."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from trtbuild.network.decoder import NetworkShape, build_decoder
from trtserve.executor import tensorrt_io as io

from .models import ARCHITECTURES, CACHE_POSITIONS, VOCAB, Runner, build, config_of, random_weights
from .reference import reference_logits

#: The error's norm against the logits' norm: a few units in the last place over two layers.
RELATIVE_ERROR = {"float16": 0.01, "bfloat16": 0.08}


def sequence(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=n)


@pytest.mark.parametrize("fold_groups", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ragged_rounds_agree_with_the_reference(trt: Any, architecture: str, fold_groups: bool) -> None:
    """Four slots, four rounds: other lengths and row counts in each, one slot empty now and then."""
    config = config_of(architecture)
    network = build(trt, config, fold_groups=fold_groups)
    runner = Runner(trt, network, slots=4)
    texts = [sequence(s, 48) for s in range(4)]
    wanted = [reference_logits(config, network.weights, text) for text in texts]
    lengths = [0, 0, 0, 0]
    for num_rows in ([5, 3, 1, 4], [1, 6, 0, 2], [9, 1, 9, 0], [2, 2, 2, 2]):
        rows = max(num_rows)
        tokens = [[*text[at : at + n], *[0] * (rows - n)] for text, at, n in zip(texts, lengths, num_rows, strict=True)]
        starts = [at if n else CACHE_POSITIONS - rows for at, n in zip(lengths, num_rows, strict=True)]
        _, logits = runner.run(tokens, starts, num_rows)
        for b, (at, n) in enumerate(zip(lengths, num_rows, strict=True)):
            torch.testing.assert_close(logits[b, :n], wanted[b][0][at : at + n], atol=2e-5, rtol=1e-4)
        lengths = [at + n for at, n in zip(lengths, num_rows, strict=True)]
    for b, (_, keys, values) in enumerate(wanted):
        for layer in range(config.num_layers):
            for kind, expected in (("k", keys), ("v", values)):
                held = runner.caches[io.cache_input(kind, layer)][b, :, : lengths[b]]
                torch.testing.assert_close(held, expected[layer][:, : lengths[b]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_half_precision_stays_near_the_reference(trt: Any, architecture: str, dtype: str) -> None:
    config = config_of(architecture, dtype=dtype)
    network = build(trt, config)
    runner = Runner(trt, network, slots=1)
    text = sequence(1, 20)
    stored = {name: value.to(getattr(torch, dtype)) for name, value in network.weights.items()}
    wanted, _, _ = reference_logits(config, stored, text)
    _, first = runner.run([text[:12]], [0])
    _, second = runner.run([text[12:]], [12])
    got = torch.cat((first[0], second[0]))
    assert got.dtype == torch.float32
    assert (got - wanted).norm() / wanted.norm() < RELATIVE_ERROR[dtype]


def test_rejected_rows_are_overwritten(trt: Any) -> None:
    """After a round of which only two rows stay, the next round's rows land on the rest and see none of it."""
    config = config_of("llama")
    network = build(trt, config)
    runner = Runner(trt, network, slots=1)
    text = sequence(2, 12)
    wrong = [(t + 1) % VOCAB for t in text]
    runner.run([[*text[:2], *wrong[2:9]]], [0])
    _, logits = runner.run([text[2:]], [2])
    wanted, _, _ = reference_logits(config, network.weights, text)
    torch.testing.assert_close(logits[0], wanted[2:], atol=2e-5, rtol=1e-4)


def test_prefill_gives_the_last_row_alone(trt: Any) -> None:
    config = config_of("qwen3")
    network = build(trt, config)
    runner = Runner(trt, network, slots=1)
    text = sequence(3, 17)
    _, logits = runner.run([text], [0], head_rows=[16])
    wanted, _, _ = reference_logits(config, network.weights, text)
    assert logits.shape == (1, 1, VOCAB)
    torch.testing.assert_close(logits[0, 0], wanted[16], atol=2e-5, rtol=1e-4)


def accept(wanted: torch.Tensor, tokens: list[int]) -> tuple[int, int]:
    """The rule, in Python: ``wanted`` are the rows' logits."""
    targets = wanted.argmax(-1).tolist()
    count = 0
    while count + 1 < len(tokens) and targets[count] == tokens[count + 1]:
        count += 1
    return count, targets[count]


def test_accepted_counts_and_next_tokens(trt: Any) -> None:
    """Drafts right up to every possible place, beside a slot with fewer drafts and an empty one."""
    config = config_of("llama")
    network = build(trt, config)
    prompt = sequence(4, 6)
    greedy = list(prompt)
    for _ in range(8):
        wanted, _, _ = reference_logits(config, network.weights, greedy)
        greedy.append(int(wanted[-1].argmax()))
    for right in range(8):
        runner = Runner(trt, network, slots=3)
        runner.run([prompt[:5]] * 3, [0, 0, 0])
        drafts = [t if i < right else (t + 1) % VOCAB for i, t in enumerate(greedy[6:13])]
        rows = [greedy[5], *drafts]
        verdict, _ = runner.run([rows, rows, rows], [5, 5, CACHE_POSITIONS - 8], [8, 4, 0])
        assert verdict[0].tolist() == [right, greedy[6 + right], 0]
        short = min(right, 3)
        assert verdict[1].tolist() == [short, greedy[6 + short], 0]
        assert verdict[2, 0] == 0


def test_a_row_that_is_not_finite_fails_its_sequence_alone(trt: Any) -> None:
    config = config_of("llama", tie_word_embeddings=False)
    weights = random_weights(config)
    weights["embed"][7] = float("nan")
    network = build(trt, config, weights)
    runner = Runner(trt, network, slots=3)
    verdict, logits = runner.run([[7, 1], [2, 3], [2, 3]], [0, 0, 0], [2, 2, 1])
    assert verdict[:, 2].tolist() == [1, 0, 0]
    assert verdict[0, 0] == 0
    assert logits[1].isfinite().all()


def test_an_infinite_logit_is_the_highest_and_no_failure(trt: Any) -> None:
    """As in every other executor: a row fails when a logit is NaN or none is above minus infinity."""
    config = config_of("llama", tie_word_embeddings=False)
    tokens, failed = [], []
    for sign in (1, -1):
        weights = random_weights(config)
        weights["final_norm"][0] = 1000
        weights["lm_head"][5] = 0
        weights["lm_head"][5, 0] = sign * 3e38
        verdict, logits = Runner(trt, build(trt, config, weights), slots=1).run([[3]], [0])
        assert logits[0, 0, 5].isinf()
        tokens.append(int(verdict[0, 1]))
        failed.append(int(verdict[0, 2]))
    assert tokens.count(5) == 1
    assert failed == [0, 0]


def test_greedy_profiles_output_no_logits(trt: Any) -> None:
    config = config_of("llama")
    network = build(trt, config)
    runner = Runner(trt, network, slots=1)
    inputs = {
        io.TOKEN_IDS: torch.tensor([[1, 2, 3]], dtype=torch.int32),
        io.LENGTHS: torch.zeros(1, dtype=torch.int32),
        io.NUM_ROWS: torch.tensor([3], dtype=torch.int32),
        io.HEAD_ROWS: torch.arange(3, dtype=torch.int32),
        io.LOGIT_ROWS: torch.empty(0, dtype=torch.int32),
    }
    out = runner.interpreter.run({**inputs, **runner.caches})
    assert out[io.LOGITS].shape == (1, 0, VOCAB)


def test_every_tensor_is_bound_on_the_device(trt: Any) -> None:
    """A shape tensor would have to be in host memory when an enqueue begins; everything here is in device memory."""
    definition = build(trt, config_of("mixed_windows")).definition
    tensors = [definition.get_input(i) for i in range(definition.num_inputs)]
    tensors += [definition.get_output(i) for i in range(definition.num_outputs)]
    assert len(tensors) == 5 + 4 + 4 + 2
    assert {t.is_shape_tensor for t in tensors} == {False}
    assert {t.is_execution_tensor for t in tensors} == {True}


def test_weights_that_do_not_fit_the_config_are_refused(trt: Any) -> None:
    config = config_of("llama")
    weights = random_weights(config)
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))

    def attempt(changed: dict[str, torch.Tensor]) -> None:
        build_decoder(trt, builder.create_network(0), config, changed, NetworkShape(64))

    with pytest.raises(ValueError, match=r"lack layers\.0\.q"):
        attempt({name: value for name, value in weights.items() if name != "layers.0.q"})
    with pytest.raises(ValueError, match="no place in the network for lm_head"):
        attempt({**weights, "lm_head": weights["embed"]})
    with pytest.raises(ValueError, match=r"final_norm is \[47\], wanted \[48\]"):
        attempt({**weights, "final_norm": weights["final_norm"][:-1]})
