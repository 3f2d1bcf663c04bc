"""Sampling with lookup: the same tokens as without for the same seed, and the distribution the model asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtplugins.acceptance import accept_host

from .sequences import sampling_arrays


class ToyModel:
    """Logits depend on the two tokens before, so that a wrongly kept draft shows."""

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab = vocab
        self.table = np.random.default_rng(seed).normal(scale=1.5, size=(vocab, vocab, vocab)).astype(np.float32)

    def logits(self, text: list[int]) -> np.ndarray:
        return self.table[text[-2], text[-1]]


def generate(
    model: ToyModel, length: int, drafts_of: Any, counts: np.ndarray | None = None, **fields: Any
) -> tuple[list[int], int]:
    """(text after the first two tokens, rounds). ``drafts_of(text)`` proposes what may follow."""
    text, rounds = [0, 1], 0
    while len(text) < length + 2:
        drafts = drafts_of(text)[: length + 1 - len(text)]
        rows = [text[-1], *drafts]
        logits = np.stack([model.logits(text + drafts[:i]) for i in range(len(rows))])
        arrays = sampling_arrays(1, position=len(text), **fields)
        if counts is not None:
            counts[:] = np.bincount(text[2:], minlength=model.vocab)
            arrays.counts[0] = counts.ctypes.data
        one = np.ones(1, np.int32)
        result = accept_host(logits, one * 0, one * len(rows), np.array(rows, np.int32), arrays, 1)
        kept = int(result.accepted[0])
        text += [*drafts[:kept], int(result.next[0])]
        rounds += 1
    return text[2:], rounds


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 3, "min_p": 0.05},
        {"temperature": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.1},
        {"temperature": 0.0, "frequency_penalty": 0.3},
    ],
)
@pytest.mark.parametrize("quality", ["right", "wrong", "mixed"])
def test_the_same_seed_gives_the_same_text_with_lookup_and_without(fields: dict[str, Any], quality: str) -> None:
    model = ToyModel(11, 3)
    counts = np.zeros(model.vocab, np.int32) if "frequency_penalty" in fields else None
    for seed in range(5):
        plain, _ = generate(model, 60, lambda _: [], counts, seed=seed, **fields)
        rng = np.random.default_rng(seed)

        def drafts_of(text: list[int], plain: list[int] = plain, rng: np.random.Generator = rng) -> list[int]:
            right = plain[len(text) - 2 :][: int(rng.integers(0, 9))]
            if quality == "right":
                return right
            wrong = [int(t) for t in rng.integers(0, 11, len(right))]
            return (
                wrong
                if quality == "wrong"
                else [r if rng.random() < 0.8 else w for r, w in zip(right, wrong, strict=True)]
            )

        copied, rounds = generate(model, 60, drafts_of, counts, seed=seed, **fields)
        assert copied == plain
        if quality == "right":
            assert rounds < 40


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """(statistic, degrees of freedom); tokens expected fewer than 5 times are one class."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    used = wanted > 0
    assert observed[~used].sum() == 0, "a token of probability 0 was drawn"
    return float(((observed[used] - wanted[used]) ** 2 / wanted[used]).sum()), int(used.sum()) - 1


def limit(freedom: int) -> float:
    """Chi-square's 1 - 10^-5 quantile, by Wilson and Hilferty's approximation."""
    z, k = 4.2649, 2 / (9 * freedom)
    return float(freedom * (1 - k + z * k**0.5) ** 3)


def expected_probabilities(x: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    p = np.exp((x.astype(np.float64) - x.max()) / temperature)
    if top_k:
        p[x < np.sort(x)[-top_k]] = 0
    order = np.argsort(-x)
    above = np.cumsum(p[order]) - p[order]
    p[order[above >= top_p * p.sum()]] = 0
    p[p < min_p] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (0.6, 0, 0.9, 0.0), (1.5, 12, 1.0, 0.0), (1.0, 40, 0.95, 0.02), (2.0, 0, 1.0, 0.1)],
)
def test_chi_square_of_single_draws(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    draws, vocab = 100_000, 200
    row = np.random.default_rng(5).normal(scale=1.5, size=vocab).astype(np.float32)
    logits = np.lib.stride_tricks.as_strided(row, (draws, vocab), (0, row.itemsize))
    arrays = sampling_arrays(
        draws,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=np.uint64(77),
        position=np.arange(draws),
    )
    one = np.ones(draws, np.int32)
    result = accept_host(logits, np.arange(draws, dtype=np.int32), one, one * 0, arrays, 2)
    counts = np.bincount(result.next, minlength=vocab)
    statistic, freedom = chi_square(counts, expected_probabilities(row, temperature, top_k, top_p, min_p))
    assert statistic < limit(freedom)


def test_chi_square_of_what_lookup_emits() -> None:
    """Over many seeds, the third token emitted with (wrong and right) drafts has its exact marginal distribution."""
    model, seeds = ToyModel(6, 9), 4000
    first = expected_probabilities(model.table[0, 1], 1.0, 0, 1.0, 0.0)
    marginal = np.zeros(6)
    for a in range(6):
        second = expected_probabilities(model.table[1, a], 1.0, 0, 1.0, 0.0)
        for b in range(6):
            marginal += first[a] * second[b] * expected_probabilities(model.table[a, b], 1.0, 0, 1.0, 0.0)
    best = int(np.argmax(first))
    counts = np.zeros(6, int)
    for seed in range(seeds):
        text, _ = generate(model, 3, lambda text: [best, 2, 3, 1][: 6 - len(text)], seed=seed, temperature=1.0)
        counts[text[2]] += 1
    statistic, freedom = chi_square(counts, marginal)
    assert statistic < limit(freedom)
