"""Ragged batches for acceptance tests: random and adversarial sequences, with what the reference makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtplugins.sampling_arrays import PROMPT_BIT, SamplingArrays, pack_sampling

from . import acceptance_reference as reference


def sampling_arrays(batch: int, **fields: Any) -> SamplingArrays:
    """Greedy without processing, except for ``fields`` (one value for all, or ``[batch]``)."""
    defaults: dict[str, Any] = {
        "temperature": np.float32(0),
        "top_k": np.int32(0),
        "top_p": np.float32(1),
        "min_p": np.float32(0),
        "seed": np.uint64(0),
        "position": np.int64(0),
        "repetition_penalty": np.float32(1),
        "presence_penalty": np.float32(0),
        "frequency_penalty": np.float32(0),
        "counts": np.uint64(0),
        "bias_tokens": np.uint64(0),
        "bias_values": np.uint64(0),
        "num_bias": np.int32(0),
        "ban_tokens": np.uint64(0),
        "num_ban": np.int32(0),
        "ban_rows": np.int32(0),
        "mask": np.uint64(0),
    }
    assert fields.keys() <= defaults.keys()
    return SamplingArrays(
        *(np.array(np.broadcast_to(np.asarray(fields.get(n, d)), (batch,)), d.dtype) for n, d in defaults.items())
    )


def bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """float32 cut to bfloat16 (towards zero; a NaN stays one), as uint16."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(logits: np.ndarray) -> np.ndarray:
    """float32 values of logits of any format."""
    if logits.dtype == np.uint16:
        return (logits.astype(np.uint32) << 16).view(np.float32)
    return logits.astype(np.float32)


@dataclass
class Batch:
    """A packed batch and the reference's answer. ``doubtful``: sequences the reference cannot judge."""

    logits: np.ndarray
    row_start: np.ndarray
    num_rows: np.ndarray
    tokens: np.ndarray
    sampling: SamplingArrays | None
    targets: np.ndarray
    accepted: np.ndarray
    failed: np.ndarray
    next: np.ndarray
    doubtful: np.ndarray
    keep: list[np.ndarray] = field(default_factory=list)  # what sampling's addresses point to

    @property
    def packed(self) -> np.ndarray | None:
        return None if self.sampling is None else pack_sampling(self.sampling, len(self.row_start))

    def check(self, result: Any) -> None:
        sure = ~self.doubtful
        for name in ("accepted", "failed", "next"):
            got, want = getattr(result, name)[sure], getattr(self, name)[sure]
            wrong = np.flatnonzero(got != want)
            assert not len(wrong), (
                f"{name}: {len(wrong)} of {len(want)} differ, e.g. {got[wrong[:5]]} for {want[wrong[:5]]}"
            )
        rows = np.zeros(len(self.targets), bool)
        for b in np.flatnonzero(sure):
            rows[self.row_start[b] : self.row_start[b] + self.num_rows[b]] = True
        assert (result.targets[rows] == self.targets[rows]).all()


def random_batch(
    rng: np.random.Generator, batch: int, vocab: int, most_rows: int, dtype: Any, *, sampled: bool, processed: bool
) -> Batch:
    """Sequences of 0 to ``most_rows`` rows, many with ties, NaN, infinities, dead rows, right and wrong drafts."""
    num_rows = rng.integers(0, most_rows + 1, batch).astype(np.int32)
    # Packed in a shuffled order, with a gap after the last: rows need not lie in the sequences' order.
    order = rng.permutation(batch)
    row_start = np.zeros(batch, np.int32)
    row_start[order] = np.concatenate(([0], np.cumsum(num_rows[order])[:-1]))
    total = int(num_rows.sum()) + 1
    x = rng.normal(scale=rng.choice([0.5, 2.0, 6.0], (total, 1)), size=(total, vocab)).astype(np.float32)
    tied = rng.random(total) < 0.3
    x[tied] = np.round(x[tied])
    for value, share in ((np.nan, 0.02), (np.inf, 0.03), (-np.inf, 0.1), (-0.0, 0.1), (0.0, 0.1)):
        for r in np.flatnonzero(rng.random(total) < share):
            x[r, rng.integers(0, vocab, rng.integers(1, 4))] = value
    x[rng.random(total) < 0.02] = -np.inf
    pitch = vocab + int(rng.integers(0, 9))  # rows need not be next to each other, nor aligned
    logits = np.zeros((total, pitch), dtype)
    logits[:, :vocab] = bfloat16_bits(x) if dtype == np.uint16 else x
    logits = logits[:, :vocab]
    x = widened(logits)

    options, keep, arrays = [{} for _ in range(batch)], [], None
    if sampled or processed:
        temperature = np.where(rng.random(batch) < 0.2, 0, rng.choice([0.3, 0.7, 1.0, 1.7], batch))
        arrays = sampling_arrays(
            batch,
            temperature=temperature if sampled else np.float32(0),
            top_k=np.where(rng.random(batch) < 0.5, 0, rng.integers(1, vocab + 3, batch)),
            top_p=np.where(rng.random(batch) < 0.5, 1, rng.uniform(0.05, 1, batch)),
            min_p=np.where(rng.random(batch) < 0.6, 0, rng.uniform(0, 1, batch)),
            seed=rng.integers(0, 1 << 63, batch, dtype=np.uint64) * np.uint64(2) + np.uint64(1),
            position=rng.integers(0, 1 << 40, batch),
        )
        if processed:
            options = [_processing(rng, arrays, b, int(num_rows[b]), vocab, keep) for b in range(batch)]

    tokens = rng.integers(0, vocab, total).astype(np.int32)
    targets, doubtful = np.full(total, -1, np.int32), np.zeros(batch, bool)
    for r in range(most_rows):
        have = np.flatnonzero(num_rows > r)
        rows = row_start[have] + r
        values = x[rows].copy()
        for i, b in enumerate(have):
            if options[b]:
                drafts = tokens[row_start[b] + 1 : row_start[b] + r + 1]
                mask = options[b].get("mask")
                values[i] = reference.process(
                    values[i], drafts, r, **{**options[b], "mask": None if mask is None else mask[r]}
                )
        if arrays is None:
            zero, one = np.zeros(len(have)), np.ones(len(have))
            choice, doubt = reference.choose(values, zero, zero.astype(int), one, zero, zero)
        else:
            random = np.array([reference.philox(int(arrays.seed[b]), int(arrays.position[b]) + r) for b in have])
            choice, doubt = reference.choose(
                values, arrays.temperature[have], arrays.top_k[have], arrays.top_p[have], arrays.min_p[have], random
            )
        targets[rows] = choice
        doubtful[have] |= doubt
        right = have[(num_rows[have] > r + 1) & (rng.random(len(have)) < 0.8)]
        following = row_start[right] + r + 1
        tokens[following] = np.maximum(targets[following - 1], 0)
    accepted, failed = np.zeros(batch, np.int32), np.zeros(batch, bool)
    next_ = np.full(batch, -1, np.int32)
    for b in np.flatnonzero(num_rows):
        span = slice(row_start[b], row_start[b] + num_rows[b])
        accepted[b], next_[b], failed[b], targets[span] = reference.accept(targets[span], tokens[span])
    return Batch(logits, row_start, num_rows, tokens, arrays, targets, accepted, failed, next_, doubtful, keep)


def _processing(
    rng: np.random.Generator, arrays: SamplingArrays, b: int, rows: int, vocab: int, keep: list[np.ndarray]
) -> dict[str, Any]:
    """Gives sequence ``b`` some processing, in ``arrays`` and as the reference's keywords."""
    options: dict[str, Any] = {}

    def address(values: np.ndarray) -> int:
        keep.append(values)
        return values.ctypes.data

    if rng.random() < 0.5:
        counts = np.where(rng.random(vocab) < 0.2, PROMPT_BIT, 0).astype(np.int32)
        counts += rng.poisson(0.3, vocab).astype(np.int32)
        options["counts"] = counts
        arrays.counts[b] = address(counts)
        for name, field_, value in (
            ("repetition", arrays.repetition_penalty, rng.choice([1.0, 1.3, 0.7])),
            ("presence", arrays.presence_penalty, rng.choice([0.0, 0.5, -1.0])),
            ("frequency", arrays.frequency_penalty, rng.choice([0.0, 0.4, -0.3])),
        ):
            field_[b] = value
            options[name] = float(field_[b])
    if rng.random() < 0.4:
        biased = rng.choice(vocab, rng.integers(1, min(vocab, 5) + 1), replace=False).astype(np.int32)
        values = rng.choice([-np.inf, -3.0, 2.5], len(biased)).astype(np.float32)
        options["bias"] = dict(zip(biased.tolist(), values.tolist(), strict=True))
        arrays.bias_tokens[b], arrays.bias_values[b], arrays.num_bias[b] = address(biased), address(values), len(biased)
    if rng.random() < 0.4:
        bans = np.unique(rng.integers(0, vocab, 3)).astype(np.int32)
        options["bans"], options["ban_rows"] = bans.tolist(), int(rng.integers(0, rows + 1))
        arrays.ban_tokens[b], arrays.num_ban[b], arrays.ban_rows[b] = address(bans), len(bans), options["ban_rows"]
    if rng.random() < 0.3 and rows:
        mask = rng.random((rows, vocab)) < 0.5
        bits = np.zeros((rows, (vocab + 31) // 32 * 32), np.uint8)
        bits[:, :vocab] = mask
        options["mask"] = mask
        arrays.mask[b] = address(np.packbits(bits, axis=1, bitorder="little").view(np.uint32))
    return options
