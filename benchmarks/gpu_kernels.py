"""The kernels on a GPU, against what the device can do: run by benchmarks/gpu.sh.

    python -m benchmarks.gpu_kernels [--json FILE]

| measured | goal |
|---|---|
| greedy accept of 8 x 9 x 151,936 float16, its bytes over its time, as a share of the copy bandwidth | at least 70% |
| host time of launching a 1 x 9 accept | under 10 µs |
| lookup over 8 histories of 131,072 tokens | under 20 µs |

Device times are CUDA events around many launches, over more buffers than the L2 cache holds. Exits 1 if a goal is
missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trtplugins.acceptance import LookupRule
from trtplugins.launch import CudaStream, Launcher

BATCH, ROWS, VOCAB, HISTORY = 8, 9, 151_936, 131_072


def device_seconds(calls: list[Callable[[], Any]], repeats: int = 20) -> float:
    """Seconds per call on the device, over all calls in turn, best of three runs."""
    for call in calls:
        call()
    best = float("inf")
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            for call in calls:
                call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3 / repeats / len(calls))
    return best


def graph_seconds(calls: list[Callable[[], Any]]) -> float:
    """device_seconds of the calls captured in a CUDA graph: what the host needs to launch is left out."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for call in calls:
            call()
    return device_seconds([graph.replay]) / len(calls)


def copy_bandwidth() -> float:
    """Bytes read and written per second by the device's own copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / device_seconds([lambda: target.copy_(source)])


class Accept:
    """One greedy accept's arrays."""

    def __init__(self, launcher: Launcher, batch: int, rows: int, vocab: int, dtype: torch.dtype) -> None:
        self.launcher, self.rows = launcher, rows
        self.logits = torch.randn(batch * rows, vocab, device="cuda", dtype=dtype)
        self.row_start = torch.arange(batch, dtype=torch.int32, device="cuda") * rows
        self.num_rows = torch.full((batch,), rows, dtype=torch.int32, device="cuda")
        self.tokens = torch.zeros(batch * rows, dtype=torch.int32, device="cuda")
        self.targets, self.failed = torch.empty_like(self.tokens), torch.empty(batch, dtype=torch.bool, device="cuda")
        self.accepted, self.next = torch.empty_like(self.num_rows), torch.empty_like(self.num_rows)

    def __call__(self) -> None:
        self.launcher.accept(
            self.logits,
            self.row_start,
            self.num_rows,
            self.tokens,
            None,
            targets=self.targets,
            accepted=self.accepted,
            next_tokens=self.next,
            failed=self.failed,
            max_rows=self.rows,
        )


def measure() -> dict[str, float]:
    torch.manual_seed(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launcher = Launcher(CudaStream(stream.cuda_stream, torch.cuda.current_device()))
        bandwidth = copy_bandwidth()
        results = {"copy_gb_s": bandwidth / 1e9}

        accepts = [Accept(launcher, BATCH, ROWS, VOCAB, torch.float16) for _ in range(24)]  # 525 MB
        seconds = graph_seconds(accepts)
        results["accept_us"] = seconds * 1e6
        results["accept_share_of_copy"] = accepts[0].logits.nbytes / seconds / bandwidth
        results["argmax_us"] = device_seconds([lambda a=a: a.logits.argmax(1) for a in accepts]) * 1e6

        small = Accept(launcher, 1, ROWS, VOCAB, torch.float16)
        for _ in range(100):
            small()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            small()
        results["launch_host_us"] = (time.perf_counter() - begin) / 500 * 1e6
        results["accept_one_us"] = graph_seconds([small]) * 1e6

        history = torch.randint(0, 32_000, (BATCH, HISTORY), dtype=torch.int32, device="cuda")
        lengths = torch.full((BATCH,), HISTORY, dtype=torch.int32, device="cuda")
        allowed = torch.full((BATCH,), 8, dtype=torch.int32, device="cuda")
        rows = torch.empty(BATCH, 9, dtype=torch.int32, device="cuda")
        num_rows, start = torch.empty_like(lengths), torch.empty_like(lengths)
        for name, depth in (("latest", 4), ("longest", 64)):
            rule = LookupRule(4, 8, depth)

            def lookup(rule: LookupRule = rule) -> None:
                launcher.lookup(history, lengths, allowed, rule, rows=rows, num_rows=num_rows, start=start)

            results[f"lookup_{name}_us"] = graph_seconds([lookup]) * 1e6
    return results


GOALS: dict[str, Callable[[float], bool]] = {
    "accept_share_of_copy": lambda share: share >= 0.7,
    "launch_host_us": lambda us: us < 10,
    "lookup_latest_us": lambda us: us < 20,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    results = measure()
    print(f"{torch.cuda.get_device_name()}\n| measured | value | goal met |\n|---|---|---|")
    for name, value in results.items():
        met = "" if name not in GOALS else "yes" if GOALS[name](value) else "NO"
        print(f"| {name} | {value:.3g} | {met} |")
    if options.json:
        options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), **results}, indent=1))
    return 0 if all(met(results[name]) for name, met in GOALS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
