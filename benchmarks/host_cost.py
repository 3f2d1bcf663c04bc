"""What drafting costs the host, by context length: our drafter and others', in one run.

``python -m benchmarks.host_cost [--lengths 1000 32000 ...] [--only WORDS] [--json FILE]``

Times are of calls from Python, in CPU time of the calling thread, so that a busy machine does not count. Drafters take
turns inside one process, each turn with a new one, and the medians are reported; the first rounds after the prompt,
while caches fill, are not counted. A round is propose + settle + observe for one sequence, or for others' drafters a
search and its own update, what was emitted written down included.

*copying*: all of a round's up to 8 drafts are accepted, as in the middle of a copy. *searching*: each round emits one
token of new text, whatever was drafted. *index*: what reading the prompt costs. Ours is measured part by part, in one
call (``Drafter.step``), and in one call for 8 sequences, then per sequence.

Others': vLLM's CPU proposer is its rule compiled by numba (2 to 5 tokens, its search alone, without vLLM's own calls
around it); SuffixDecoding is its authors' package, where it is installed (``benchmarks/policies/arctic.py`` says how);
transformers' prompt lookup is its own class; the rescan compares the last four tokens with every position, in NumPy.
What is not installed is left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from numpy.typing import NDArray

from benchmarks.host_drafters import Ours, OursInOneCall, Subject, our_drafter, peers
from benchmarks.report import table

LENGTHS = (1_000, 32_000, 128_000, 1_000_000)
BATCH = 8
WARM, ROUNDS = 50, 100  # per turn: rounds that are not counted, and that are
SLOW, SLOW_ROUNDS = 100e-6, 3  # seconds a round, and the rounds of a drafter that takes as long
TURNS, LEAST_TURNS = 11, 3
ENOUGH = 4.0  # seconds of one drafter at one length, after which it has no further turns

LONE, ONE_CALL, BATCHED, RESCAN = "ours", "ours, one call", f"ours, one call for {BATCH}", "rescan (NumPy)"


class DrafterCost(TypedDict):
    """One drafter at one context length, medians of CPU time. ``bytes_per_token``: None where there is no index."""

    copying_us: float
    searching_us: float
    index_ns_per_token: float
    bytes_per_token: float | None


class Cost(TypedDict):
    """One context length: the figures of ``LONE``, the batch's and the rescan's rounds, and all drafters by name."""

    tokens: int
    index_ms: float
    index_ns_per_token: float
    bytes_per_token: float
    round_us: float
    one_call_us: float
    batch_round_us_per_sequence: float
    rescan_us: float
    drafters: dict[str, DrafterCost]


def synthetic_text(length: int, seed: int = 0) -> NDArray[np.int32]:
    """Tokens with a Zipf-like distribution, so that n-grams repeat about as they do in text."""
    rng = np.random.default_rng(seed)
    return (rng.zipf(1.3, length) % 50_000).astype(np.int32)


def seconds(work: Callable[[], object]) -> float:
    """CPU time of this thread."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


class Measured:
    """One drafter's turns at one length."""

    def __init__(self, make: Callable[[NDArray[np.int32]], Subject], sequences: int = 1) -> None:
        self.make, self.sequences = make, sequences
        self.index: list[float] = []
        self.copying: list[float] = []
        self.searching: list[float] = []
        self.bytes: float | None = None
        self.spent = 0.0

    def turn(self, prompt: NDArray[np.int32], fresh: NDArray[np.int32]) -> None:
        if self.spent > ENOUGH and len(self.index) >= LEAST_TURNS:
            return
        started = time.thread_time()
        made: list[Subject] = []
        self.index.append(seconds(lambda: made.append(self.make(prompt))) / self.sequences)
        subject = made.pop()
        self.bytes = subject.bytes
        slow = seconds(lambda: subject.copying(1)) > SLOW * self.sequences
        warm, rounds = (1, SLOW_ROUNDS) if slow else (WARM, ROUNDS)
        subject.copying(warm)
        self.copying.append(seconds(lambda: subject.copying(rounds)) / rounds / self.sequences)
        subject.searching(fresh[:warm])
        text = fresh[warm : warm + rounds]
        self.searching.append(seconds(lambda: subject.searching(text)) / rounds / self.sequences)
        self.spent += time.thread_time() - started

    def cost(self, length: int) -> DrafterCost:
        return DrafterCost(
            copying_us=statistics.median(self.copying) * 1e6,
            searching_us=statistics.median(self.searching) * 1e6,
            index_ns_per_token=statistics.median(self.index) * 1e9 / length,
            bytes_per_token=None if self.bytes is None else self.bytes / length,
        )


def subjects() -> dict[str, Measured]:
    """Ours first."""
    ours = {
        LONE: Measured(partial(Ours, our_drafter("adaptive"))),
        ONE_CALL: Measured(partial(OursInOneCall, our_drafter("adaptive"))),
        BATCHED: Measured(partial(OursInOneCall, our_drafter("adaptive"), batch=BATCH), BATCH),
        "ours, policy window, one call": Measured(partial(OursInOneCall, our_drafter("window"))),
    }
    return ours | {name: Measured(make) for name, make in peers().items()}


def measure(length: int, only: Iterable[str] = ()) -> dict[str, DrafterCost]:
    """All drafters at one context length, or those whose names hold one of the words ``only``."""
    words = tuple(only)
    taking_part = {n: m for n, m in subjects().items() if not words or any(word in n for word in words)}
    prompt, fresh = synthetic_text(length), synthetic_text(WARM + ROUNDS, seed=1)
    for _ in range(TURNS):
        gc.collect()
        gc.disable()
        try:
            for measured in taking_part.values():
                measured.turn(prompt, fresh)
        finally:
            gc.enable()
    return {name: measured.cost(length) for name, measured in taking_part.items()}


def cost(length: int, drafters: dict[str, DrafterCost]) -> Cost:
    ours = drafters[LONE]
    return Cost(
        tokens=length,
        index_ms=ours["index_ns_per_token"] * length / 1e6,
        index_ns_per_token=ours["index_ns_per_token"],
        bytes_per_token=ours["bytes_per_token"] or 0.0,
        round_us=ours["copying_us"],
        one_call_us=drafters[ONE_CALL]["copying_us"],
        batch_round_us_per_sequence=drafters[BATCHED]["copying_us"],
        rescan_us=drafters[RESCAN]["copying_us"],
        drafters=drafters,
    )


def drafters_table(by_length: dict[int, dict[str, DrafterCost]]) -> str:
    """A drafter's row at every length, in Markdown; times in µs, indexes in ns and bytes a token."""
    names = list(next(iter(by_length.values())))
    head = ["", *(f"{length:,}" for length in by_length)]

    def rows(figure: Callable[[DrafterCost], float | None], digits: int) -> list[list[str]]:
        found = []
        for name in names:
            values = [figure(drafters[name]) for drafters in by_length.values()]
            if any(value is not None for value in values):
                found.append([name, *("" if value is None else f"{value:,.{digits}f}" for value in values)])
        return found

    parts = {
        "a copying round and sequence, µs": rows(lambda c: c["copying_us"], 2),
        "a searching round and sequence, µs": rows(lambda c: c["searching_us"], 2),
        "index, ns a prompt token": rows(lambda c: c["index_ns_per_token"] if c["bytes_per_token"] else None, 1),
        "index, bytes a token": rows(lambda c: c["bytes_per_token"], 1),
    }
    return table(head, [row for title, of in parts.items() for row in ([f"**{title}**", *[""] * len(by_length)], *of)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Host cost of drafting by context length, ours and others'.",
        epilog="numba and transformers come with the bench extra; benchmarks/policies/arctic.py says how to install "
        "SuffixDecoding's package.",
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="context lengths, in tokens")
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD", help="only drafters whose names hold a word")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too; needs all drafters")
    arguments = parser.parse_args()
    if min(arguments.lengths) < 256:
        parser.error("lengths are at least 256 tokens")
    if arguments.only and arguments.json:
        parser.error("--json is for all drafters, without --only")
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)  # a thread's own CPU time is what is measured
    by_length = {length: measure(length, arguments.only) for length in arguments.lengths}
    if not all(by_length.values()):
        parser.error(f"no drafter's name holds any of {', '.join(arguments.only)}")
    print(drafters_table(by_length))
    if arguments.json:
        costs = [cost(length, drafters) for length, drafters in by_length.items()]
        arguments.json.write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
