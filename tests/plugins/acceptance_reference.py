"""The acceptance rule again, in NumPy: logits processing in float32 as documented, probabilities in float64.

Where float64 cannot tell which way the kernels' fixed point decides (a draw or a threshold within ``EPSILON`` of a
boundary) a choice is *doubtful*: tests count those and leave them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

EPSILON = 2e-6
PROMPT = 1 << 30


def philox(seed: int, position: int) -> int:
    """Philox4x32-10 on Python integers: the first 64 bits for counter (position, 0) and key seed."""
    c = [position & 0xFFFFFFFF, (position >> 32) & 0xFFFFFFFF, 0, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0] | (c[1] << 32)


def process(
    logits: np.ndarray,
    drafts: np.ndarray,
    row: int,
    *,
    counts: np.ndarray | None = None,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    bias: dict[int, float] | None = None,
    bans: Any = (),
    ban_rows: int = 0,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """One row's logits, float32 ``[V]``, after processing. ``drafts``: those before the row. ``mask``: bool ``[V]``."""
    x = logits.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        if counts is not None and (repetition != 1 or presence != 0 or frequency != 0):
            seen = counts.astype(np.int64)
            for d in drafts:
                seen[d] += 1
            output = (seen & (PROMPT - 1)).astype(np.float32)
            r, p, f = np.float32(repetition), np.float32(presence), np.float32(frequency)
            x = np.where(seen != 0, np.where(x > 0, x / r, x * r), x)
            x = np.where(output > 0, x - f * output - p, x)
        for token, value in (bias or {}).items():
            x[token] = -np.inf if value == -np.inf else x[token] + np.float32(value)
        if row < ban_rows:
            x[list(bans)] = -np.inf
        if mask is not None:
            x[~mask] = -np.inf
    return x.astype(np.float32)


def choose(
    x: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    random: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Target tokens ``[N]`` (-1: none) of processed rows ``x`` ``[N, V]``, and which are doubtful, bool ``[N]``."""
    n, vocab = x.shape
    dead = np.isnan(x).any(1) | ~(x > -np.inf).any(1)
    x = np.where(dead[:, None], 0, x).astype(np.float64)
    best = x.argmax(1)
    highest = x.max(1, keepdims=True)
    t = np.where(temperature == 0, 1, temperature).astype(np.float64)[:, None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        weight = np.where(x == highest, 1.0, np.exp((x - highest) / t))
    descending = -np.sort(-x, axis=1)
    k = np.where((top_k > 0) & (top_k < vocab), top_k, vocab)
    kept = x >= descending[np.arange(n), k - 1][:, None]
    weight = weight * kept
    doubtful = np.zeros(n, bool)
    # The mass strictly above each token, ties being one step of the staircase.
    order = np.argsort(-x, axis=1, kind="stable")
    sorted_x, sorted_w = np.take_along_axis(x, order, 1), np.take_along_axis(weight, order, 1)
    running = np.cumsum(sorted_w, 1)
    total = running[:, -1:].copy()
    step = np.concatenate([np.ones((n, 1), bool), sorted_x[:, 1:] != sorted_x[:, :-1]], 1)
    before = np.concatenate([np.zeros((n, 1)), running[:, :-1]], 1)
    above = np.maximum.accumulate(np.where(step, before, 0), 1)
    goal = top_p.astype(np.float64)[:, None] * total
    nucleus = (above < goal) | (above == 0) | (top_p == 1)[:, None]
    near = (np.abs(above - goal) < EPSILON * total) & (top_p < 1)[:, None] & (sorted_w > 0) & (above > 0)
    doubtful |= near.any(1)
    in_nucleus = np.zeros_like(kept)
    np.put_along_axis(in_nucleus, order, nucleus, 1)
    least = min_p.astype(np.float64)[:, None]
    doubtful |= ((np.abs(weight - least) < EPSILON * least) & (weight < 1) & (least > 0)).any(1)
    weight = weight * (in_nucleus & (weight >= least))
    cdf = np.cumsum(weight, 1)
    draw = np.array([int(r) / 2.0**64 for r in random]) * cdf[:, -1]
    token = (cdf <= draw[:, None]).sum(1)
    token = np.minimum(token, vocab - 1)
    edge = np.abs(cdf - draw[:, None]).min(1) < EPSILON * cdf[:, -1]
    sampled = temperature > 0
    doubtful = (doubtful | edge) & sampled & ~dead
    token = np.where(sampled, token, best)
    return np.where(dead, -1, token).astype(np.int32), doubtful


def accept(targets: np.ndarray, tokens: np.ndarray) -> tuple[int, int, bool, np.ndarray]:
    """(accepted, next, failed, targets) of one sequence, given every row's target."""
    rows = len(targets)
    last = next(r for r in range(rows) if r + 1 == rows or targets[r] < 0 or targets[r] != tokens[r + 1])
    return last, int(targets[last]), bool(targets[last] < 0), np.where(np.arange(rows) > last, -1, targets)
