"""The kernels' own source on emulated threads, against the NumPy reference and the host build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtplugins import _host
from trtplugins.host import AcceptResult
from trtplugins.sampling_arrays import PROMPT_BIT, pack_sampling

from .kernel_emulation import ORDERS, Emulated
from .sequences import Batch, random_batch, sampling_arrays

VOCABS = [1, 2, 31, 32, 33, 61, 127, 300]
DTYPES = [np.float32, np.float16, np.uint16]


def on_host(batch: Batch, threads: int = 1, isa: str = "") -> Any:
    packed = batch.packed
    return AcceptResult(
        *_host.accept(
            batch.logits,
            batch.row_start,
            batch.num_rows,
            batch.tokens,
            None if packed is None else packed.view(np.uint8),
            threads,
            isa,
        )
    )


def same(a: Any, b: Any) -> None:
    for name in ("targets", "accepted", "failed", "next"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy(emulated: Emulated, order: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    for vocab in VOCABS:
        batch = random_batch(rng, 40, vocab, 5, dtype, sampled=False, processed=False)
        for threads, splits in ((32, 1), (96, 3)):
            result = emulated.accept(
                batch.logits,
                batch.row_start,
                batch.num_rows,
                batch.tokens,
                None,
                threads=threads,
                splits=splits,
                order=order,
                seed=vocab,
            )
            batch.check(result)
        same(result, on_host(batch))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sampled(emulated: Emulated, order: str, dtype: Any, processed: bool) -> None:
    rng = np.random.default_rng(2)
    doubtful = total = 0
    for vocab in VOCABS:
        batch = random_batch(rng, 24, vocab, 4, dtype, sampled=True, processed=processed)
        threads = int(rng.choice([32, 64]))
        result = emulated.accept(
            batch.logits,
            batch.row_start,
            batch.num_rows,
            batch.tokens,
            batch.packed,
            threads=threads,
            order=order,
            seed=vocab,
        )
        batch.check(result)
        same(result, on_host(batch))
        doubtful, total = doubtful + int(batch.doubtful.sum()), total + 24
    assert doubtful < total / 50


def test_the_largest_blocks(emulated: Emulated) -> None:
    rng = np.random.default_rng(3)
    batch = random_batch(rng, 2, 5003, 3, np.float32, sampled=True, processed=True)
    for threads in (512, 1024):
        call = (batch.logits, batch.row_start, batch.num_rows, batch.tokens, batch.packed)
        batch.check(emulated.accept(*call, threads=threads, order="shuffled"))


@pytest.mark.parametrize("sequences", [1, 256])
def test_batch_sizes(emulated: Emulated, sequences: int) -> None:
    rng = np.random.default_rng(sequences)
    batch = random_batch(rng, sequences, 40, 3, np.float32, sampled=False, processed=False)
    call = (batch.logits, batch.row_start, batch.num_rows, batch.tokens)
    batch.check(emulated.accept(*call, None, splits=2))


@pytest.mark.parametrize("accepted", range(9))
def test_every_accepted_count(emulated: Emulated, accepted: int) -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(9, 50)).astype(np.float32)
    targets = logits.argmax(1).astype(np.int32)
    tokens = np.concatenate(([7], targets[:8])).astype(np.int32)
    if accepted < 8:
        tokens[accepted + 1] = (tokens[accepted + 1] + 1) % 50
    result = emulated.accept(logits, np.zeros(1, np.int32), np.full(1, 9, np.int32), tokens, None, splits=2)
    assert result.accepted.tolist() == [accepted]
    assert result.next.tolist() == [targets[accepted]]
    assert result.targets.tolist() == [*targets[: accepted + 1], *[-1] * (8 - accepted)]


def test_all_tokens_tied(emulated: Emulated) -> None:
    one = np.ones(1, np.int32)
    for value in (0.0, -1.0, np.inf):
        logits = np.full((1, 77), value, np.float32)
        assert emulated.accept(logits, one * 0, one, one, None, splits=3).next.tolist() == [0]
    signs = np.array([[-1.0, -0.0, 0.0, -0.0]], np.float32)
    assert emulated.accept(signs, one * 0, one, one, None).next.tolist() == [1]


def one_row(emulated: Emulated, logits: list[float], draws: int = 40, **fields: Any) -> set[int]:
    """The tokens that ``draws`` positions choose from one row of logits; -1 where a row fails."""
    x = np.tile(np.array(logits, np.float32), (draws, 1))
    start, one = np.arange(draws, dtype=np.int32), np.ones(draws, np.int32)
    packed = pack_sampling(sampling_arrays(draws, temperature=1.0, position=np.arange(draws), **fields), draws)
    return set(emulated.accept(x, start, one, one * 0, packed, threads=32).next.tolist())


def test_the_edges_of_what_is_kept(emulated: Emulated) -> None:
    logits = [1.0, 2.0, 2.0, 0.0, 2.0]
    assert one_row(emulated, logits) == {0, 1, 2, 3, 4}
    assert one_row(emulated, logits, top_k=1) == {1, 2, 4}, "ties at the boundary are kept"
    assert one_row(emulated, logits, top_k=4) == {0, 1, 2, 4}
    assert one_row(emulated, logits, top_p=1e-12) == {1, 2, 4}, "the best are kept however small the share"
    assert one_row(emulated, logits, min_p=1) == {1, 2, 4}
    halves = [0.0, 0.0, -np.inf]
    assert one_row(emulated, halves, top_p=0.5) == {0, 1}
    infinite = [3.0, np.inf, -np.inf, np.inf]
    assert one_row(emulated, infinite) == {1, 3}, "infinities share everything"
    assert one_row(emulated, [np.nan, 1.0]) == {-1}
    assert one_row(emulated, [-np.inf, -np.inf]) == {-1}


def test_penalties_see_the_drafts_before_the_row(emulated: Emulated) -> None:
    logits = np.tile(np.array([5.0, 4.5, 4.2, 0.0], np.float32), (5, 1))
    counts = np.zeros(4, np.int32)
    counts[2] = PROMPT_BIT  # of the prompt, not of the output: no presence penalty
    arrays = sampling_arrays(1, presence_penalty=1.0, counts=np.uint64(counts.ctypes.data))
    zero = np.zeros(1, np.int32)
    # 0 is best; after it 1 is, then 2, then 0 again (5 - 1 against 4.5 - 1 and 4.2 - 1).
    tokens = np.array([3, 0, 1, 2, 0], np.int32)
    result = emulated.accept(logits, zero, zero + 5, tokens, pack_sampling(arrays, 1), threads=32)
    assert result.targets.tolist() == [0, 1, 2, 0, 0]
    assert counts.tolist() == [0, 0, PROMPT_BIT, 0], "counts are read, not changed"

    arrays = sampling_arrays(1, frequency_penalty=0.2, counts=np.uint64(counts.ctypes.data))
    tokens = np.array([3, 0, 0, 0, 0], np.int32)
    result = emulated.accept(logits, zero, zero + 5, tokens, pack_sampling(arrays, 1), threads=32)
    assert result.targets.tolist() == [0, 0, 0, 1, -1], "each occurrence among the drafts counts"


def test_a_ban_holds_for_infinity_and_nan(emulated: Emulated) -> None:
    logits = np.array([[1.0, np.inf, np.nan, 0.5]], np.float32)
    one, tokens, values = np.ones(1, np.int32), np.array([1, 2], np.int32), np.full(2, -np.inf, np.float32)
    by_bias = {"bias_tokens": tokens.ctypes.data, "bias_values": values.ctypes.data, "num_bias": 2}
    by_list = {"ban_tokens": tokens.ctypes.data, "num_ban": 2, "ban_rows": 1}
    mask = np.array([0b1001], np.uint32)
    for fields in (by_bias, by_list, {"mask": mask.ctypes.data}):
        packed = pack_sampling(sampling_arrays(1, **fields), 1)
        result = emulated.accept(logits, one * 0, one, one, packed, threads=32)
        assert (result.next.tolist(), result.failed.tolist()) == ([0], [False])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_sequences(emulated: Emulated, part: int) -> None:
    """10^5 sequences in all; every launch has its own vocabulary, format, block, grid and order."""
    rng = np.random.default_rng(100 + part)
    done = doubtful = 0
    while done < 25_000:
        sampled = bool(rng.random() < 0.25)
        size = 400 if sampled else 1500
        vocab = int(rng.integers(1, 80))
        dtype = DTYPES[rng.integers(3)]
        batch = random_batch(rng, size, vocab, 3, dtype, sampled=sampled, processed=sampled and rng.random() < 0.5)
        result = emulated.accept(
            batch.logits,
            batch.row_start,
            batch.num_rows,
            batch.tokens,
            batch.packed,
            threads=32 if rng.random() < 0.8 else 64,
            splits=1 if rng.random() < 0.7 else 3,
            order=str(rng.choice(list(ORDERS))),
            seed=done,
        )
        batch.check(result)
        same(result, on_host(batch))
        done += size
        doubtful += int(batch.doubtful.sum())
    assert doubtful < done / 100


def test_padded_candidates_decide_as_ragged_rows_do(emulated: Emulated) -> None:
    """The TensorRT plugins' two kernels."""
    rng = np.random.default_rng(5)
    sequences, rows, vocab, splits = 20, 5, 90, 3
    logits = rng.normal(size=(sequences * rows, vocab)).astype(np.float32)
    logits[rng.integers(0, len(logits), 5), 3] = np.nan
    targets = logits.argmax(1).astype(np.int32)
    tokens = np.zeros((sequences, rows), np.int32)
    right = rng.random((sequences, rows - 1)) < 0.8
    tokens[:, 1:] = np.where(right, targets.reshape(sequences, rows)[:, :-1], 1)
    num_rows = rng.integers(0, rows + 1, sequences).astype(np.int32)
    want = emulated.accept(
        logits, (np.arange(sequences) * rows).astype(np.int32), num_rows, tokens.reshape(-1), None, splits=1
    )
    candidates = np.zeros((sequences, rows, splits), np.uint64)
    emulated.launch("tl_row_candidates_f32", (splits, sequences * rows), 64, [logits, np.int32(vocab), candidates])
    out = [np.full((sequences, rows), 9, np.int32), *(np.full(sequences, 9, np.int32) for _ in range(2))]
    emulated.launch(
        "tl_accept_candidates", (sequences,), 64, [candidates, tokens, num_rows, np.int32(rows), np.int32(splits), *out]
    )
    for got, name in zip(out, ("targets", "accepted", "next"), strict=True):
        assert np.array_equal(got.reshape(-1), getattr(want, name)), name


def test_commit_appends_what_was_accepted_and_counts_it(emulated: Emulated) -> None:
    max_len, vocab = 12, 20
    history = np.zeros((5, max_len), np.int32)
    lengths = np.array([3, 5, 11, 4, 10], np.int32)
    before = history.copy()
    counts = np.zeros(vocab, np.int32)
    arrays = sampling_arrays(5, position=lengths)
    arrays.counts[0] = counts.ctypes.data
    packed = pack_sampling(arrays, 5)
    targets = np.array([[7, 7, 9], [4, -1, -1], [5, 6, -1], [-1, -1, -1], [1, 2, -1]], np.int32)
    accepted = np.array([2, 0, 1, 0, 1], np.int32)  # the third has no room, the fourth failed, the fifth just fits
    row_start, num_rows = np.arange(0, 15, 3, dtype=np.int32), np.full(5, 3, np.int32)
    arguments = [row_start, num_rows, targets, accepted, history, np.int32(max_len), lengths, packed]
    emulated.launch("tl_commit", (5,), 32, arguments)
    assert lengths.tolist() == packed["position"].tolist() == [6, 6, 11, 4, 12]
    before[0, 3:6], before[1, 5], before[4, 10:] = [7, 7, 9], 4, [1, 2]
    assert np.array_equal(history, before)
    assert {t: int(c) for t, c in enumerate(counts) if c} == {7: 2, 9: 1}


def test_blocks_are_whole_warps(emulated: Emulated) -> None:
    with pytest.raises(RuntimeError, match="whole warps"):
        emulated.launch("tl_commit", (1,), 33, [None] * 8)
