"""What a verify costs by rows: ``python -m benchmarks.verify_cost ENGINE_DIR [--transformers CHECKPOINT]``.

Every shape is timed in turns within one process, so a busy machine slows all of them alike; ratios of the medians are
the result, the milliseconds only say where it was measured. With ``--transformers`` the same model's forward with a
dynamic cache takes part, as what the rows would cost without an engine.
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

from benchmarks.report import table
from trtserve import engine_dir
from trtserve.executor.base import StepInput
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams, SamplingState
from trtserve.settings import Limits, Tier

ROWS = (1, 2, 3, 5, 9, 17)


def engine_forward(executor: TorchExecutor, context: int) -> Callable[[int], object]:
    """A function that verifies so many rows after ``context`` tokens."""
    tokens = np.random.default_rng(0).integers(0, executor.info.vocab_size, context + max(ROWS)).astype(np.int32)
    chunk = executor.info.prefill_chunk
    for start in range(0, context, chunk):
        executor.prefill(0, start, tokens[start : min(start + chunk, context)])
    state = SamplingState.start(SamplingParams(temperature=0), tokens[: context + 1], executor.info.vocab_size, ())
    slot, length = np.zeros(1, np.int32), np.array([context], np.int32)

    def forward(rows: int) -> object:
        drafts = tokens[context : context + rows]
        return executor.step(StepInput(slot, length, np.array([rows], np.int32), drafts, [state]))

    return forward


def transformers_forward(checkpoint: Path, context: int) -> Callable[[int], object]:
    """The same with transformers: the cache is cut back after each forward."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (1, context + max(ROWS)), generator=generator)
    cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def forward(rows: int) -> object:
        if cache.get_seq_length() < context:
            model(tokens[:, :context], past_key_values=cache, use_cache=True)
        out = model(tokens[:, context : context + rows], past_key_values=cache, use_cache=True)
        cache.crop(context - cache.get_seq_length())
        return out.logits

    return forward


def medians(forwards: dict[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Median seconds per entry of ROWS for each forward, every repeat taking all of them in turn."""
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in ROWS] for name in forwards}
    for forward in forwards.values():
        forward(1)
    for _ in range(repeats):
        for i, rows in enumerate(ROWS):
            for name, forward in forwards.items():
                start = time.perf_counter()
                forward(rows)
                seconds[name][i].append(time.perf_counter() - start)
    return {name: [statistics.median(s) for s in by_rows] for name, by_rows in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds of one verify by rows, and relative to one row.")
    parser.add_argument("engine_dirs", type=Path, nargs="+", help="engine directories of target torch")
    parser.add_argument("--transformers", type=Path, help="checkpoint directory to time transformers' forward on")
    parser.add_argument("--context", type=int, default=512, help="tokens in the KV cache (default 512)")
    parser.add_argument("--repeats", type=int, default=15, help="timings per shape (default 15)")
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--json", type=Path, help="write the seconds to this file too, by forward and rows")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    forwards: dict[str, Callable[[int], object]] = {}
    for directory in args.engine_dirs:
        manifest = engine_dir.load(directory)
        tiers = (Tier(name="lone", batch=1, rows=max(ROWS)), Tier(name="prefill", batch=1, rows=512))
        limits = Limits(max_batch_size=1, max_seq_len=max(16, args.context + max(ROWS)), prefill_chunk=512)
        manifest = manifest.model_copy(update={"tiers": tiers, "limits": limits})
        executor = TorchExecutor.load(directory, manifest, threads=args.threads)
        forwards[f"{directory.name} ({manifest.model.dtype})"] = engine_forward(executor, args.context)
    if args.transformers:
        forwards["transformers (float32)"] = transformers_forward(args.transformers, args.context)

    measured = medians(forwards, args.repeats)
    if args.json:
        args.json.write_text(json.dumps({n: dict(zip(ROWS, s, strict=True)) for n, s in measured.items()}) + "\n")
    lines = [[name, *(f"{1e3 * s:.1f} ({s / seconds[0]:.2f}x)" for s in seconds)] for name, seconds in measured.items()]
    print(f"Milliseconds of one verify after {args.context} tokens, {torch.get_num_threads()} threads, by rows\n")
    print(table(["", *map(str, ROWS)], lines))


if __name__ == "__main__":
    main()
