"""Accept on the host against ``torch.argmax`` over the same tensor, on the same number of threads.

    python -m benchmarks.accept_host [--threads 2] [--rounds 30] [--json FILE]

Calls are interleaved and medians compared, so that a busy machine slows both alike. The goal is a ratio of at most
1.2 for 8 sequences of 9 rows of 49,152 float32 logits, all drafts accepted (every row is read).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trtplugins import _host
from trtplugins.acceptance import SamplingArrays, accept_host

BATCH, ROWS, VOCAB = 8, 9, 49_152


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):  # the first two warm up
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def sampling(batch: int, **fields: float) -> SamplingArrays:
    values: dict[str, Any] = {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, "position": 100,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "counts": 0, "bias_tokens": 0,
        "bias_values": 0, "num_bias": 0, "ban_tokens": 0, "num_ban": 0, "ban_rows": 0, "mask": 0, **fields,
    }  # fmt: skip
    return SamplingArrays(**{name: np.full(batch, value) for name, value in values.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    points: list[dict[str, Any]] = []
    torch.set_num_threads(options.threads)
    logits = torch.randn(BATCH * ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    best = logits.argmax(1).numpy().astype(np.int32)
    row_start = (np.arange(BATCH) * ROWS).astype(np.int32)
    num_rows = np.full(BATCH, ROWS, np.int32)
    tokens = np.zeros(BATCH * ROWS, np.int32)
    for start in row_start:
        tokens[start + 1 : start + ROWS] = best[start : start + ROWS - 1]

    print(f"{BATCH} x {ROWS} x {VOCAB:,}, {options.threads} threads, instruction set {_host.instruction_set()}")
    print("| logits | accept ms | torch.argmax ms | ratio |\n|---|---|---|---|")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = logits.to(dtype)
        medians = interleaved(
            {
                "accept": lambda x=x: accept_host(x, row_start, num_rows, tokens, None, options.threads),
                "argmax": lambda x=x: x.argmax(1),
            },
            options.rounds,
        )
        ratio = medians["accept"] / medians["argmax"]
        points.append(
            {
                "logits": str(dtype).removeprefix("torch."),
                "seconds": medians["accept"],
                "argmax_seconds": medians["argmax"],
                "ratio": ratio,
            }
        )
        print(f"| {dtype} | {medians['accept'] * 1e3:.2f} | {medians['argmax'] * 1e3:.2f} | {ratio:.2f} |")

    print("\n| sampled, one row a sequence, one thread | µs a row |\n|---|---|")
    one, first = np.ones(BATCH, np.int32), np.arange(BATCH, dtype=np.int32)
    sampled: list[dict[str, Any]] = []
    for fields in ({}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9, "min_p": 0.05}):
        arrays = sampling(BATCH, **fields)
        median = interleaved(
            {"accept": lambda a=arrays: accept_host(logits[:BATCH], first, one, one, a, 1)}, options.rounds
        )
        name = ", ".join(f"{k} {v}" for k, v in fields.items()) or "temperature 1"
        sampled.append({"sampling": name, "row_seconds": median["accept"] / BATCH})
        print(f"| {name} | {median['accept'] / BATCH * 1e6:.0f} |")
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "threads": options.threads,
                    "instruction_set": _host.instruction_set(),
                    "accept": points,
                    "sampled": sampled,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
