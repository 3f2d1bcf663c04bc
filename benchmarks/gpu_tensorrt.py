"""The TensorRT target on a GPU: build a plan, run it, compare it with the torch executor, time every tier.

Compared, with the torch executor on the CPU over the same weights: log-probabilities of the same rows, greedy text
(a difference must be a tie: the two tokens' log-probabilities within the tolerance), text with lookup on and off, and
rows beside neighbours of other lengths. Timed: one verify of each tier, and text whose output repeats its input.

    python -m benchmarks.gpu_tensorrt [--recipe FILE] [--engine DIR] [--json FILE]

Ends with 1 when a comparison fails, 2 when there is nothing to run on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtbuild import builder
from trtbuild.progress import TerminalProgress
from trtbuild.recipe import load_recipe
from trtserve.engine_dir import Manifest
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import Executor, StepInput, StepOutput
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.executor.tensorrt_cuda import missing_gpu
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams, SamplingState

ROOT = Path(__file__).resolve().parents[1]
#: Nats by which a half-precision engine may differ from float32 arithmetic on the same weights.
TOLERANCE = {"float16": 0.05, "bfloat16": 0.35, "float32": 0.01}
OUTPUT = 48
REPEATS = 30


class Failures(list[str]):
    """What did not hold."""

    def require(self, held: bool, what: str) -> None:
        print(f"{'ok    ' if held else 'FAILED'}  {what}", flush=True)
        if not held:
            self.append(what)


def state(params: SamplingParams, vocab: int) -> SamplingState:
    return SamplingState.start(params, np.zeros(1, np.int32), vocab, ())


def step(
    executor: Executor,
    slots: Sequence[int],
    lengths: Sequence[int],
    rows: Sequence[Sequence[int]],
    params: SamplingParams,
) -> StepOutput:
    """One verify of several sequences."""
    return executor.step(
        StepInput(
            np.array(slots, np.int32),
            np.array(lengths, np.int32),
            np.array([len(r) for r in rows], np.int32),
            np.array([t for r in rows for t in r], np.int32),
            [state(params, executor.info.vocab_size)] * len(rows),
        )
    )


def prefill(executor: Executor, slot: int, tokens: Sequence[int]) -> None:
    for start in range(0, len(tokens), executor.info.prefill_chunk):
        part = tokens[start : start + executor.info.prefill_chunk]
        executor.prefill(slot, start, np.array(part, np.int32))


def greedy(executor: Executor, prompt: Sequence[int], count: int, params: SamplingParams) -> Iterator[StepOutput]:
    """Plain rounds of one sequence in slot 0."""
    prefill(executor, 0, prompt[:-1])
    token, length = prompt[-1], len(prompt) - 1
    for _ in range(count):
        out = step(executor, [0], [length], [[token]], params)
        yield out
        token, length = int(out.targets[0]), length + 1


def compare(engine: TensorRTExecutor, torch: TorchExecutor, prompts: list[list[int]], tolerance: float) -> Failures:
    """Every comparison, on the prompts' tokens."""
    failures = Failures()
    with_logprobs = SamplingParams(temperature=0, logprobs=5)
    plain = SamplingParams(temperature=0)
    worst, ties = 0.0, 0
    for prompt in prompts:
        text = [*prompt, *(int(o.targets[0]) for o in greedy(engine, prompt, OUTPUT, with_logprobs))]
        wanted = torch.logits(0, 0, np.array(text[:-1], np.int32))[len(prompt) - 1 :]
        shifted = wanted - wanted.max(-1, keepdims=True)
        wanted = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        for row, out in zip(wanted, greedy(engine, prompt, OUTPUT, with_logprobs), strict=True):
            entry = (out.logprobs[0] or [None])[0]
            if entry is None:
                failures.require(False, "log-probabilities were asked for and are missing")
                return failures
            worst = max(worst, float(np.abs(row[entry.top_tokens] - entry.top_values).max()))
            chosen = int(out.targets[0])
            if chosen != int(row.argmax()):
                ties += 1
                gap = float(row.max() - row[chosen])
                failures.require(gap <= tolerance, f"a token that differs is a tie (gap {gap:.4f} nats)")
        plain_text = [int(o.targets[0]) for o in greedy(engine, prompt, OUTPUT, plain)]
        failures.require(
            plain_text == text[len(prompt) :],
            "native acceptance chooses the token that host acceptance chooses from the logits",
        )
        rows = engine.info.max_rows(1)
        prefill(engine, 1, prompt[:-1])
        out = step(engine, [1], [len(prompt) - 1], [text[len(prompt) - 1 : len(prompt) - 1 + rows]], plain)
        failures.require(int(out.accepted[0]) >= rows - 2, f"{rows - 1} right drafts: {int(out.accepted[0])} accepted")
        wrong = [text[len(prompt) - 1], (text[len(prompt)] + 1) % engine.info.vocab_size, *([5] * (rows - 2))]
        out = step(engine, [1], [len(prompt) - 1], [wrong], plain)
        failures.require(int(out.accepted[0]) == 0, "a wrong first draft accepts nothing")
    failures.require(worst <= tolerance, f"log-probabilities within {tolerance} nats: {worst:.4f} ({ties} ties)")
    _ragged(engine, prompts, failures)
    return failures


def _ragged(engine: TensorRTExecutor, prompts: list[list[int]], failures: Failures) -> None:
    """Scattered slots of other lengths and row counts, one of them idle and full: each writes what it writes alone."""
    plain = SamplingParams(temperature=0)
    slots = [0, 2, engine.info.max_batch_size - 1][: engine.info.max_batch_size]
    most = engine.info.max_rows(len(slots))
    alone = []
    for slot, prompt in zip(slots, prompts, strict=False):
        prefill(engine, slot, prompt[:-1])
        alone.append(int(step(engine, [slot], [len(prompt) - 1], [[prompt[-1]]], plain).targets[0]))
    for _ in range(3):
        rows = [[p[-1], *([1] * (i % most))] for i, p in enumerate(prompts[: len(slots)])]
        out = step(engine, slots, [len(p) - 1 for p in prompts[: len(slots)]], rows, plain)
        firsts = [int(out.targets[o]) for o in np.cumsum([0, *map(len, rows)])[:-1]]
        failures.require(firsts == alone, f"first targets beside neighbours, rows {[*map(len, rows)]}, are those alone")
    engine.copy_prefix(slots[0], 1, len(prompts[0]) - 1)
    copied = int(step(engine, [1], [len(prompts[0]) - 1], [[prompts[0][-1]]], plain).targets[0])
    failures.require(copied == alone[0], "a copied prefix continues like its source")


def time_tiers(engine: TensorRTExecutor, contexts: Sequence[int] = (128, 1024)) -> list[dict[str, Any]]:
    """The median time of a verify of each tier's shape, greedy and with logits, after two that are not counted."""
    figures = []
    rng = np.random.default_rng(0)
    for tier in engine.info.tiers:
        if tier.name == "prefill":
            continue
        for context in contexts:
            if context + tier.rows > engine.info.max_seq_len:
                continue
            for rows in sorted({1, tier.rows}):
                for name, params in (
                    ("greedy", SamplingParams(temperature=0)),
                    ("sampled", SamplingParams(temperature=1.0, seed=1)),
                ):
                    tokens = rng.integers(0, engine.info.vocab_size, (tier.batch, rows)).tolist()
                    times = []
                    for i in range(REPEATS + 2):
                        begin = time.perf_counter()
                        step(engine, range(tier.batch), [context] * tier.batch, tokens, params)
                        if i >= 2:
                            times.append(time.perf_counter() - begin)
                    figures.append(
                        {
                            "tier": tier.name,
                            "batch": tier.batch,
                            "rows": rows,
                            "context": context,
                            "kind": name,
                            "median_ms": statistics.median(times) * 1e3,
                        }
                    )
    return figures


def build(recipe: Path, runtime: str, out: Path) -> Manifest:
    prepared = builder.prepare(load_recipe(recipe, [f"tensorrt.runtime={runtime}"]))
    return builder.build(prepared, out, measure=False, progress=TerminalProgress()).manifest


def prompts_of(vocab: int, count: int = 3) -> list[list[int]]:
    """Token runs of other lengths that repeat themselves; what they say does not matter to a comparison."""
    rng = np.random.default_rng(7)
    made = []
    for i in range(count):
        piece = rng.integers(10, min(vocab, 20_000), 12 + 9 * i).tolist()
        made.append((piece * 8)[: 40 + 37 * i])
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "smollm2-135m-rtx.yaml")
    parser.add_argument("--engine", type=Path, help="an engine directory to run, or to build into")
    parser.add_argument("--runtime", choices=("tensorrt", "tensorrt_rtx"), help="default: what this GPU runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if (missing := missing_gpu()) is not None:
        print(missing, file=sys.stderr)
        return 2
    from cuda.core import Device

    gpu = Device(0)
    gpu.set_current()
    major, minor = gpu.compute_capability
    runtime = options.runtime or ("tensorrt" if major in (9, 10) else "tensorrt_rtx")
    print(f"{gpu.name}, compute capability {major}.{minor}, {runtime}")
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.engine or Path(scratch) / "engine"
        begin = time.monotonic()
        manifest = build(options.recipe, runtime, directory)
        built = time.monotonic() - begin
        begin = time.monotonic()
        engine = TensorRTExecutor.load(directory, manifest)
        loaded = time.monotonic() - begin
        prepared = builder.prepare(load_recipe(options.recipe, [f"tensorrt.runtime={runtime}"]))
        dtype = manifest.model.dtype
        # Half-precision weights, float32 arithmetic: what differs is the engine's arithmetic alone.
        torch = TorchExecutor(manifest.model, prepared.checkpoint.tensors(), manifest.limits, manifest.tiers)
        try:
            failures = compare(engine, torch, prompts_of(manifest.model.vocab_size), TOLERANCE[dtype])
            figures = time_tiers(engine)
        finally:
            engine.close()
            torch.close()
    info = io.PlanInfo.model_validate(manifest.target_info)
    print(f"\n{'tier':<6} {'batch':>5} {'rows':>4} {'context':>7} {'kind':<8} {'median ms':>9}")
    for f in figures:
        print(f"{f['tier']:<6} {f['batch']:>5} {f['rows']:>4} {f['context']:>7} {f['kind']:<8} {f['median_ms']:>9.3f}")
    if options.json:
        result = {
            "device": str(gpu.name),
            "runtime": f"{info.runtime} {info.runtime_version}",
            "dtype": dtype,
            "build_seconds": built,
            "load_seconds": loaded,
            "failures": list(failures),
            "steps": figures,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
