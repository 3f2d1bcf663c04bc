"""What other drafters cost the host, by context length, in one run with ours.

``python -m benchmarks.host_peers [--lengths 1000 32000 128000] [--json FILE]``

Everything is CPU time of the calling thread, in turns inside one process, medians reported. transformers' prompt lookup
is its own ``PromptLookupCandidateGenerator`` (10 drafts, 2-grams). *longest match by rescan* is what a proposer without
an index does each round, as vLLM's compiled one: one pass over the reversed context that finds the longest suffix of 2
to 5 tokens that occurred before, here in NumPy. Ours are rounds of propose + settle + observe from Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from benchmarks.host_cost import Copying, seconds, synthetic_text
from benchmarks.report import table
from trtserve.lookup.drafter import Drafter
from trtserve.settings import PromptLookup

LENGTHS = (1_000, 32_000, 128_000)
TURNS, ROUNDS, CALLS = 9, 200, 3


def longest_by_rescan(history: NDArray[np.int32], shortest: int, longest: int, drafts: int) -> NDArray[np.int32]:
    """What followed the earliest occurrence of the longest suffix that has one."""
    lengths = np.zeros(len(history) - 1, np.int32)
    alive = np.ones(len(history) - 1, bool)
    for back in range(longest):
        alive[:back] = False
        alive[back:] &= history[: len(history) - 1 - back] == history[-1 - back]
        lengths[alive] = back + 1
    best = int(lengths.max(initial=0))
    return history[int(np.argmax(lengths == best)) + 1 :][:drafts] if best >= shortest else history[:0]


def measure(length: int) -> dict[str, float]:
    """Microseconds a round and sequence."""
    text = synthetic_text(length)
    history = np.concatenate((text, text[:64]))
    ids = torch.from_numpy(history.astype(np.int64))[None]
    generator = PromptLookupCandidateGenerator(num_output_tokens=10, max_matching_ngram_size=2, max_length=2 * length)
    ours = {
        policy: Copying(Drafter(PromptLookup.model_validate({"policy": policy})), text, 1)
        for policy in ("adaptive", "window")
    }
    times: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for policy, copying in ours.items():
            copying.restart()
            times.setdefault(policy, []).append(seconds(lambda c=copying: c.rounds(ROUNDS)) / ROUNDS)  # type: ignore[misc]
        for name, call in (
            ("transformers", lambda: generator.get_candidates(ids)),
            ("longest match by rescan", lambda: longest_by_rescan(history, 2, 5, 8)),
        ):
            times.setdefault(name, []).append(
                seconds(lambda call=call: [call() for _ in range(CALLS)]) / CALLS  # type: ignore[misc]
            )
    for copying in ours.values():
        copying.finish()
    return {name: statistics.median(of) * 1e6 for name, of in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Host cost of drafting, ours and others'.")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="context lengths, in tokens")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a thread's own CPU time is what is measured
    costs = {length: measure(length) for length in arguments.lengths}
    names = list(next(iter(costs.values())))
    rows = [[f"{length:,}", *(f"{cost[name]:.1f}" for name in names)] for length, cost in costs.items()]
    print(table(["context, tokens; µs a round", *names], rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
