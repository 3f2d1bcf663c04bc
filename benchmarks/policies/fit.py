"""Fits the adaptive policy's shares to traces: how often each kind of candidate named the next token.

``python -m benchmarks.policies.fit [--half 0|1]`` prints them; ``--write`` rewrites the header that ships.

Every position of every output is tried, whatever would have been drafted there. Which candidate is chosen, and with it
what counts as a copy under way, depends on the shares, so the count is repeated with its own result.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.policies.adaptive import (
    CELLS,
    DISTANCES,
    MOST_MATCH,
    NEAR,
    PLACE,
    RUNS,
    SHARED_CURSOR,
    SHARED_VOTE,
    SKIP,
    VOTES,
    Adaptive,
    SharedLookup,
)
from benchmarks.traces.read import half, shipped
from trtserve.lookup.shared import SharedCache, SharedWay
from trtserve.replay.traces import Trace
from trtserve.settings import PromptLookup

HEADER = Path(__file__).resolve().parents[2] / "runtime/trtserve/lookup/csrc/adaptive_priors.h"
ROUNDS = 3
#: A cell's share leans on the mean of its match class as if it had been seen this often.
WEIGHT = 2.0
#: A cell of a copy under way that no trace reaches: with no match at all only a predicted output is followed.
UNSEEN = 0.75


def fit(traces: Sequence[Trace], rounds: int = ROUNDS) -> list[int]:
    """Shares in thousandths, one per cell."""
    priors = [500] * CELLS
    for _ in range(rounds):
        alone = _count(traces, priors, None)
        shared = _count(traces, priors, SharedCache(64, 16, PromptLookup().shared_key_length))
        # A text of other requests is told apart only by where it was found; all else is counted without it.
        hits, total = (
            [s if _is_shared(cell) else a for cell, (a, s) in enumerate(zip(one, other, strict=True))]
            for one, other in zip(alone, shared, strict=True)
        )
        priors = _shares(hits, total)
    return priors


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
    """The cells of one kind and match, which differ in run, vote or distance alone."""
    for start, end, width in ((0, PLACE, RUNS), (PLACE, NEAR, VOTES), (NEAR, SKIP, DISTANCES), (SKIP, CELLS, 1)):
        yield from (range(i, i + width) for i in range(start, end, width))


def header(priors: Sequence[int]) -> str:
    """The text of adaptive_priors.h: a line per match class."""
    names = {0: "cursor", PLACE: "place", NEAR: "near", SKIP: "skip"}
    lines = ["// Written by benchmarks/policies/fit.py from the traces that ship; do not edit."]
    for cells in _classes():
        if cells.start in names:
            lines.append(f"// {names[cells.start]}")
        lines.append(", ".join(str(priors[c]) for c in cells) + ",")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the adaptive policy's shares.")
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
