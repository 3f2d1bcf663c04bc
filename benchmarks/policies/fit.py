"""Fits the adaptive policy to traces: how often each kind of candidate named the next token, and how a token's chance
follows from what speaks for it.

``python -m benchmarks.policies.fit [--half 0|1]`` prints both; ``--write`` rewrites the header that ships.

Every position of every output is tried, whatever would have been drafted there. Which candidate is chosen, and with it
what counts as a copy under way, depends on the result, so it is repeated: first the shares alone, then the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.adaptive import (
    ALIGNED,
    AMEND,
    AMENDS,
    CELLS,
    DISTANCES,
    FEATURES,
    KINDS,
    MOST_MATCH,
    NEAR,
    PLACE,
    RUNS,
    SETS,
    SHARED_CURSOR,
    SHARED_VOTE,
    SKIP,
    VOTES,
    WEIGHTS,
    Adaptive,
    SharedLookup,
)
from benchmarks.traces.read import half, shipped
from trtserve.lookup.shared import SharedCache, SharedWay
from trtserve.replay.traces import Trace
from trtserve.settings import PromptLookup

Floats = NDArray[np.float64]

HEADER = Path(__file__).resolve().parents[2] / "runtime/trtserve/lookup/csrc/adaptive_priors.h"
#: Of shares, then of weights.
ROUNDS, WEIGHING = 3, 2
#: A cell's share leans on the mean of its match class as if it had been seen this often.
WEIGHT = 2.0
#: A cell of a copy under way that no trace reaches: with no match at all only a predicted output is followed.
UNSEEN = 0.75
#: How much the weights lean on "as the shares say": as a squared error of one would cost.
LEAN = 10.0
NEWTON_STEPS, CLOSE = 25, 1e-4
MOST_WEIGHT = 32.0


def fit(traces: Sequence[Trace]) -> list[int]:
    """Shares, one per cell, and weights, one per feature of each set, in thousandths."""
    plain = [float(f == "share") for f in FEATURES]
    weights = [round(1000 * w) for _ in range(SETS) for w in plain]
    shares = [500] * CELLS
    for _ in range(ROUNDS):
        alone = _count(traces, shares + weights, None)
        shared = _count(traces, shares + weights, SharedCache(64, 16, PromptLookup().shared_key_length))
        # A text of other requests is told apart only by where it was found; all else is counted without it.
        hits, total = (
            [s if _is_shared(cell) else a for cell, (a, s) in enumerate(zip(one, other, strict=True))]
            for one, other in zip(alone, shared, strict=True)
        )
        shares = _shares(hits, total)
    for _ in range(WEIGHING):
        weights = [w for judged in _judgements(traces, shares + weights) for w in _weights(judged, plain)]
    return shares + weights


def _is_shared(cell: int) -> bool:
    return SHARED_CURSOR <= cell < PLACE or (PLACE <= cell < NEAR and (cell - PLACE) % VOTES >= SHARED_VOTE)


def _count(traces: Sequence[Trace], priors: list[int], cache: SharedCache | None) -> tuple[list[int], list[int]]:
    """How often each cell's candidates were right, and how many there were. A cache keeps a scope per workload."""
    hits, total = [0] * CELLS, [0] * CELLS

    def witness(cell: int, hit: bool) -> None:
        hits[cell] += hit
        total[cell] += 1

    for trace in traces:
        shared = _lookup(cache, trace.workload) if cache else None
        policy = Adaptive(list(trace.prompt), priors, witness=witness, shared=shared)
        for token in trace.output:
            policy.propose(1)
            policy.observe([token])
        if cache:
            cache.insert(trace.workload, policy.history)
    return hits, total


def _judgements(traces: Sequence[Trace], priors: list[int]) -> list[list[list[float]]]:
    """By set, a row per token judged: whether it was right, and its features."""
    rows: list[list[list[float]]] = [[] for _ in range(SETS)]

    def judgement(which: int, features: list[int], hit: bool) -> None:
        rows[which].append([float(hit), *(f / 1000 for f in features)])

    for trace in traces:
        policy = Adaptive(list(trace.prompt), priors, judgement=judgement)
        for token in trace.output:
            policy.propose(1)
            policy.observe([token])
    return rows


def _weights(judged: list[list[float]], plain: Sequence[float]) -> list[int]:
    """A set's weights in thousandths. That a context told the next token before never counts against the token."""
    lean = np.array(plain)
    if not judged:
        return [round(1000 * w) for w in plain]
    table = np.array(judged)
    right, features = table[:, 0], table[:, 1:]
    contexts = np.array([f.startswith("context") for f in FEATURES])
    while (against := contexts & ((weights := _regression(right, features, lean)) < 0)).any():
        features[:, against] = 0
    return [round(1000 * w) for w in np.clip(weights, -MOST_WEIGHT, MOST_WEIGHT).tolist()]


def _regression(right: Floats, features: Floats, lean: Floats) -> Floats:
    """A logistic regression by Newton's method, its steps halved until the loss falls."""
    weights, loss = lean, _loss(right, features, lean, lean)
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (right - chance) - LEAN * (weights - lean)
        variance = np.maximum(chance * (1 - chance), 1e-4)
        bend = (features * variance[:, None]).T @ features + LEAN * np.eye(len(lean))
        step = np.linalg.solve(bend, slope)
        for _ in range(8):
            if (after := _loss(right, features, weights + step, lean)) <= loss:
                break
            step = step / 2
        weights, loss = weights + step, after
        if np.abs(step).max() < CLOSE:
            break
    return weights


def _loss(right: Floats, features: Floats, weights: Floats, lean: Floats) -> float:
    signed = np.where(right > 0, -1.0, 1.0) * (features @ weights)
    return float(np.logaddexp(0, signed).sum() + LEAN / 2 * ((weights - lean) ** 2).sum())


def _lookup(cache: SharedCache, scope: str) -> SharedLookup:
    def shared(tail: list[int], limit: int, most: int) -> list[SharedWay]:
        return cache.ways(scope, tail[-MOST_MATCH:], limit, most)

    return shared


def _shares(hits: Sequence[int], total: Sequence[int]) -> list[int]:
    shares = []
    for cells in _classes():
        seen = sum(total[c] for c in cells)
        mean = sum(hits[c] for c in cells) / seen if seen else UNSEEN
        shares += [round(1000 * (hits[c] + WEIGHT * mean) / (total[c] + WEIGHT)) for c in cells]
    return [min(max(share, 1), 999) for share in shares]


def _classes() -> Iterable[range]:
    """The cells of one kind and match, which differ in run, vote, distance or the like alone."""
    starts = (0, PLACE, NEAR, SKIP, AMEND, CELLS)
    for (start, end), width in zip(pairwise(starts), (RUNS, VOTES, DISTANCES, ALIGNED, AMENDS), strict=True):
        yield from (range(i, i + width) for i in range(start, end, width))


def header(priors: Sequence[int]) -> str:
    """The text of adaptive_priors.h: a line per match class, then one per set of weights."""
    names = dict(zip((0, PLACE, NEAR, SKIP, AMEND), KINDS, strict=True))
    lines = ["// Written by benchmarks/policies/fit.py from the traces that ship; do not edit."]
    for cells in _classes():
        if cells.start in names:
            lines.append(f"// {names[cells.start]}")
        lines.append(", ".join(str(priors[c]) for c in cells) + ",")
    weights = [priors[i : i + len(FEATURES)] for i in range(CELLS, CELLS + WEIGHTS, len(FEATURES))]
    lines += ["// weights", *(", ".join(map(str, of)) + "," for of in weights)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the adaptive policy's shares and weights.")
    parser.add_argument("--half", type=int, choices=(0, 1), help="use only this half of the groups")
    parser.add_argument("--write", action="store_true", help="rewrite the header that ships")
    arguments = parser.parse_args()
    traces = [t for t in shipped() if arguments.half is None or half(t) == arguments.half]
    text = header(fit(traces))
    if arguments.write:
        HEADER.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
