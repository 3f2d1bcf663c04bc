"""What drafting costs the host, by context length: index, round and memory, against a plain rescan of the history.

``python -m benchmarks.host_cost [--lengths 1000 32000 ...] [--json FILE]``

Times are of calls from Python, in CPU time of the calling thread, so that a busy machine does not count. A round is
``propose`` + ``settle`` + ``observe`` for one sequence whose copy is accepted in full, so that every round drafts; "per
sequence" is the same for a batch of 8 in one ``propose``. The rescan is what a drafter without an index does each
round: compare the last n-gram with every position, in NumPy. Everything is measured in turns inside one process, and
the medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trtserve.lookup.drafter import Drafter, SequenceDrafter
from trtserve.settings import PromptLookup

LENGTHS = (1_000, 32_000, 128_000, 1_000_000)
BATCH = 8
ROUNDS = 200  # per turn
TURNS = 15


class Cost(TypedDict):
    """One context length. Times are medians of CPU time."""

    tokens: int
    index_ms: float
    index_ns_per_token: float
    bytes_per_token: float
    round_us: float
    batch_round_us_per_sequence: float
    rescan_us: float


def synthetic_text(length: int, seed: int = 0) -> NDArray[np.int32]:
    """Tokens with a Zipf-like distribution, so that n-grams repeat about as they do in text."""
    rng = np.random.default_rng(seed)
    return (rng.zipf(1.3, length) % 50_000).astype(np.int32)


def seconds(work: Callable[[], object]) -> float:
    """CPU time of this thread."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


class Copying:
    """Sequences in the middle of copying their prompt: every round proposes, and every draft is accepted."""

    def __init__(self, drafter: Drafter, prompt: NDArray[np.int32], count: int) -> None:
        self.drafter, self.prompt = drafter, prompt
        self.sequences = [drafter.start(prompt, scope=None) for _ in range(count)]
        self.limits = np.full(count, 8, np.int32)
        self.length = len(prompt)
        self.restart()

    def restart(self) -> None:
        """Forget the output, and begin to copy again."""
        for sequence in self.sequences:
            sequence.rewind(self.length)
            sequence.observe(self.prompt[:64])

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for sequence, proposal in zip(
                self.sequences, self.drafter.propose(self.sequences, self.limits), strict=True
            ):
                tokens = proposal.tokens
                if len(tokens):
                    sequence.settle(len(tokens))
                    sequence.observe(tokens)
                else:
                    sequence.observe(self.prompt[:1])

    def finish(self) -> None:
        for sequence in self.sequences:
            self.drafter.finish(sequence, store=False)


def rescan(history: NDArray[np.int32], ngram: int, limit: int) -> NDArray[np.int32]:
    """The window policy's lookup without an index: the latest earlier occurrence of the last n-gram, by comparison."""
    windows = sliding_window_view(history[:-1], ngram)
    found = np.flatnonzero((windows == history[-ngram:]).all(axis=1))
    return history[found[-1] + ngram :][:limit] if len(found) else history[:0]


def measure(length: int) -> Cost:
    """Index, round and rescan at one context length."""
    settings = PromptLookup()
    drafter, text = Drafter(settings), synthetic_text(length)
    started: list[SequenceDrafter] = []
    index, one, batch, scan = [], [], [], []
    lone, many = Copying(drafter, text, 1), Copying(drafter, text, BATCH)
    history = np.concatenate((text, text[:64]))
    for _ in range(TURNS):
        index.append(seconds(lambda: started.append(drafter.start(text, scope=None))))
        bytes_allocated = started[-1].bytes
        drafter.finish(started.pop(), store=False)
        lone.restart()
        one.append(seconds(lambda: lone.rounds(ROUNDS)) / ROUNDS)
        many.restart()
        batch.append(seconds(lambda: many.rounds(ROUNDS)) / ROUNDS / BATCH)
        scan.append(seconds(lambda: rescan(history, settings.ngram, settings.max_drafts)))
    lone.finish()
    many.finish()
    return Cost(
        tokens=length,
        index_ms=statistics.median(index) * 1e3,
        index_ns_per_token=statistics.median(index) * 1e9 / length,
        bytes_per_token=bytes_allocated / length,
        round_us=statistics.median(one) * 1e6,
        batch_round_us_per_sequence=statistics.median(batch) * 1e6,
        rescan_us=statistics.median(scan) * 1e6,
    )


def table(costs: list[Cost]) -> str:
    """The costs as a Markdown table."""
    lines = [
        "| tokens | index, ms | index, ns/token | bytes/token | round, µs | round of 8, µs/sequence | rescan, µs |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {c['tokens']:,} | {c['index_ms']:.2f} | {c['index_ns_per_token']:.1f} | {c['bytes_per_token']:.1f} "
        f"| {c['round_us']:.2f} | {c['batch_round_us_per_sequence']:.2f} | {c['rescan_us']:.1f} |"
        for c in costs
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Host cost of drafting by context length.")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="context lengths, in tokens")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    if min(arguments.lengths) < 256:
        parser.error("lengths are at least 256 tokens")
    costs = [measure(length) for length in arguments.lengths]
    print(table(costs))
    if arguments.json:
        arguments.json.write_text(json.dumps(costs, indent=2) + "\n")


if __name__ == "__main__":
    main()
