"""Writes the cost curves that ship (``runtime/trtserve/replay/shipped``), each with where its numbers are from.

``python -m benchmarks.curves``

Times are in steps: one sequence's verify of one row is 1.
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
            "this project's CPU decoder, float16 weights, SmolLM2-135M, 2 cores of an Intel Xeon with AVX-512 that "
            "others used too: measured, all shapes in turns in one process",
            CPU_FP16,
        ),
        "cpu-fp32": curve(
            "this project's CPU decoder, float32 weights, SmolLM2-135M, 2 cores of an Intel Xeon with AVX-512 that "
            "others used too: measured, all shapes in turns in one process",
            CPU_FP32,
        ),
        "torch-fp16": curve(
            "a plain torch decoder over FBGEMM float16 linears, SmolLM2-135M, 2 cores of an AMD EPYC: measured, each "
            "batch in its own process, so that ratios between batches are rough",
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
    1: {
        1: 1.0,
        2: 1.069,
        3: 1.111,
        4: 1.168,
        5: 1.204,
        6: 1.346,
        7: 1.348,
        8: 1.492,
        9: 1.54,
        12: 1.733,
        16: 2.12,
        24: 2.965,
        32: 3.919,
        33: 4.051,
    },
    8: {1: 2.171, 2: 2.929, 3: 3.666, 4: 4.633, 5: 5.406, 6: 6.375, 7: 7.145, 8: 7.917, 9: 8.886},
}
CPU_FP32 = {
    1: {
        1: 1.0,
        2: 1.037,
        3: 1.087,
        4: 1.123,
        5: 1.154,
        6: 1.253,
        7: 1.283,
        8: 1.282,
        9: 1.285,
        12: 1.418,
        16: 1.604,
        24: 1.809,
        32: 2.142,
        33: 2.235,
    },
    8: {1: 1.712, 2: 2.032, 3: 2.248, 4: 2.569, 5: 2.853, 6: 3.427, 7: 3.857, 8: 4.284, 9: 4.715},
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
