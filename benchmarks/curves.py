"""Writes the cost curves that ship (``runtime/trtserve/replay/shipped``), each with where its numbers are from.

``python -m benchmarks.curves``

Times are in steps: one sequence's verify of one row is 1. Measured ones are medians of interleaved runs in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtserve.engine_dir import CostCurve, CostPoint

OUT = Path(__file__).resolve().parent.parent / "runtime/trtserve/replay/shipped"
CONTEXT = 512


def curve(device: str, times: Mapping[int, Mapping[int, float]]) -> CostCurve:
    """From the time of a verify by batch and rows of each sequence."""
    points = [
        CostPoint(batch=batch, rows=rows, context=CONTEXT, seconds=round(seconds, 4))
        for batch, by_rows in times.items()
        for rows, seconds in by_rows.items()
    ]
    return CostCurve(device=device, points=tuple(points))


def scaled(times: Mapping[int, float], step: float) -> dict[int, float]:
    return {rows: time * step for rows, time in times.items()}


def modelled_gpu(batch: int, rows: int) -> float:
    """A decoder bound by memory: weights and keys and values read once a verify, arithmetic added, nothing overlapped.

    8 billion parameters in 16 bits at 2.7 TB/s; 0.13 MB of keys and values a token; 400 TFLOP/s; in milliseconds.
    """
    weights = 16e9 / 2.7e12
    context = batch * CONTEXT * 0.13e6 / 2.7e12
    arithmetic = batch * rows * 16e9 / 400e12
    return (weights + context + arithmetic) * 1e3


def all_curves() -> dict[str, CostCurve]:
    gpu = {b: {r: modelled_gpu(b, r) / modelled_gpu(1, 1) for r in (1, 9, 17, 33, 65)} for b in (1, 4, 8, 16, 32)}
    return {
        "cpu-fp16": curve(
            "this project's CPU decoder, float16 weights, SmolLM2-135M, 2 cores of an AMD EPYC: measured; batch 1 up "
            "to 17 rows on an idle machine, the rest on a busy one",
            CPU_FP16,
        ),
        "cpu-fp32": curve(
            "this project's CPU decoder, float32 weights, SmolLM2-135M, 2 cores of an AMD EPYC: measured; batch 1 up "
            "to 17 rows on an idle machine, the rest on a busy one",
            CPU_FP32,
        ),
        "torch-fp16": curve(
            "a plain torch decoder over FBGEMM float16 linears, SmolLM2-135M, 2 cores of an AMD EPYC: measured",
            TORCH_FP16,
        ),
        "llama-cpp-q4": curve(
            "llama.cpp with Q4_1 weights, SmolLM2-135M, 2 cores of an AMD EPYC, batch 1: measured",
            {1: LLAMA_CPP},
        ),
        "row-0.05": curve(
            "a round figure: every draft row adds 0.05 of a step, at any batch",
            {b: {r: 1 + 0.05 * b * (r - 1) for r in (1, 65)} for b in (1, 64)},
        ),
        "gpu-modelled": curve(
            "modelled, not measured: an 8B decoder in 16 bits on a GPU bound by memory (benchmarks/curves.py)", gpu
        ),
    }


CPU_FP16 = {
    1: {1: 1, 2: 1.05, 3: 1.06, 4: 1.13, 5: 1.17, 6: 1.18, 8: 1.25, 9: 1.27, 16: 1.69, 17: 1.71, 24: 2.6, 33: 3.5},
    8: scaled({1: 1, 2: 1.343, 3: 1.924, 4: 2.658, 5: 3.396, 6: 3.584, 7: 3.948, 9: 4.293}, 2.15),
}
CPU_FP32 = {
    1: {1: 1, 2: 1.02, 3: 1.02, 4: 1.02, 5: 1.04, 6: 1.08, 8: 1.13, 9: 1.16, 16: 1.35, 17: 1.38, 24: 1.7, 33: 2.1},
    8: scaled({1: 1, 2: 1.27, 3: 1.5, 5: 1.86, 9: 2.36, 17: 3.43}, 1.52),
}
TORCH_FP16 = {
    1: {1: 1, 2: 1.07, 3: 1.14, 4: 1.34, 5: 1.19, 6: 1.32, 8: 1.46, 9: 1.68, 12: 1.99, 16: 2.36, 17: 2.08, 32: 3.24},
    4: scaled({1: 1, 2: 1.37, 3: 1.41, 5: 2.03, 9: 2.76, 17: 4.42}, 78 / 64),
    8: scaled({1: 1, 2: 1.43, 3: 2.34, 5: 2.69, 9: 3.54, 17: 6.81}, 97 / 64),
}
LLAMA_CPP = {
    1: 1,
    2: 1.58,
    3: 1.88,
    4: 2.17,
    5: 2.52,
    6: 2.83,
    8: 3.45,
    9: 3.89,
    12: 4.84,
    16: 6.02,
    17: 6.52,
    32: 10.19,
}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, made in all_curves().items():
        (OUT / f"{name}.json").write_text(made.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
