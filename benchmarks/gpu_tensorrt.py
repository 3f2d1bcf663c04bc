"""The TensorRT target on a GPU: build a plan, run it, compare it with the torch executor, time every tier.

Compared, with the torch executor on the CPU over the same weights: log-probabilities of the same rows, greedy text
with logits and without, accepted drafts, rows beside neighbours of other lengths, and text of the whole engine with
lookup on and off. A token that differs must be a near-tie: its log-probability within the dtype's tolerance of the
best. Timed: loading, a first time and with the kernels kept from the first; one verify of each tier, the first time
and when its kernels are compiled; and tokens a second of text that repeats its prompt, with lookup on and off.

    python -m benchmarks.gpu_tensorrt [--recipe FILE] [--engine DIR] [--json FILE]

Ends with 1 when a comparison fails, 77 when there is nothing to run on: no GPU, or none of its runtime installed.
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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtbuild import builder
from trtbuild.checkpoint import CheckpointError
from trtbuild.errors import BuildError, RecipeError
from trtbuild.network.plan import load_runtime
from trtbuild.progress import TerminalProgress
from trtbuild.recipe import load_recipe
from trtserve.engine_dir import Manifest
from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import Executor, ExecutorError, StepInput, StepOutput
from trtserve.executor.tensorrt import TensorRTExecutor
from trtserve.executor.torch import TorchExecutor
from trtserve.facade import Engine
from trtserve.loading import load_engine
from trtserve.overrides import Overrides
from trtserve.sampling import SamplingParams, SamplingState

ROOT = Path(__file__).resolve().parents[1]
#: What a test runner takes as "skipped".
NOTHING_TO_RUN_ON = 77


class Tolerance(NamedTuple):
    """Nats by which an engine may differ from float32 arithmetic on the same weights, over the likeliest tokens."""

    most: float
    mean: float


#: Twice and more what rounding alone makes of the 30 layers of SmolLM2-135M, evaluated layer by layer in each dtype:
#: float16 at most 0.060 and 0.010 on average, bfloat16 0.385 and 0.074.
TOLERANCE = {
    "float16": Tolerance(0.15, 0.03),
    "bfloat16": Tolerance(0.9, 0.2),
    "float32": Tolerance(0.02, 0.004),
}
OUTPUT = 48
REPEATS = 30
#: Seconds of running every shape before any is timed: TensorRT-RTX compiles kernels for a shape in the background.
WARM_SECONDS = 15.0


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


def log_probabilities(torch: TorchExecutor, text: Sequence[int], first: int) -> NDArray[np.float32]:
    """Of the token after each of ``text``'s from index ``first`` on, float32 ``[len(text) - first, V]``."""
    chunk = torch.info.prefill_chunk
    parts = [(i, np.array(text[i : i + chunk], np.int32)) for i in range(0, len(text), chunk)]
    logits = np.concatenate([torch.logits(0, start, part) for start, part in parts])[first:]
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))  # type: ignore[no-any-return]


def gap(row: NDArray[np.float32], token: int) -> float:
    """Nats between a row's likeliest token and this one."""
    return float(row.max() - row[token])


def gap_where_they_part(a: Sequence[int], b: Sequence[int], rows: NDArray[np.float32]) -> float:
    """0 for equal texts; else the larger gap of the two first tokens that differ. ``rows``: before each token of a."""
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:
            return max(gap(rows[i], x), gap(rows[i], y))
    return 0.0


def compare(engine: TensorRTExecutor, torch: TorchExecutor, prompts: list[list[int]], tolerance: Tolerance) -> Failures:
    """Every comparison of the executor, on the prompts' tokens."""
    failures = Failures()
    with_logprobs = SamplingParams(temperature=0, logprobs=5)
    plain = SamplingParams(temperature=0)
    errors: list[float] = []
    worst = 0.0
    for prompt in prompts:
        outs = list(greedy(engine, prompt, OUTPUT, with_logprobs))
        output = [int(o.targets[0]) for o in outs]
        text = [*prompt, *output]
        truth = log_probabilities(torch, text[:-1], len(prompt) - 1)
        for row, out, token in zip(truth, outs, output, strict=True):
            entry = (out.logprobs[0] or [None])[0]
            if entry is None:
                failures.require(False, "log-probabilities were asked for and are missing")
                return failures
            errors += np.abs(row[entry.top_tokens] - entry.top_values).tolist()
            worst = max(worst, gap(row, token))
        native = [int(o.targets[0]) for o in greedy(engine, prompt, OUTPUT, plain)]
        failures.require(
            gap_where_they_part(output, native, truth) <= tolerance.most,
            f"native acceptance and host acceptance choose the same {OUTPUT} tokens",
        )
        rows = engine.info.max_rows(1)
        prefill(engine, 1, prompt[:-1])
        out = step(engine, [1], [len(prompt) - 1], [text[len(prompt) - 1 : len(prompt) - 1 + rows]], plain)
        accepted = int(out.accepted[0])
        cut = 0.0 if accepted == rows - 1 else gap(truth[accepted], int(out.targets[accepted]))
        failures.require(cut <= tolerance.most, f"{rows - 1} right drafts: {accepted} accepted")
        wrong = [text[len(prompt) - 1], int(truth[0].argmin()), *([5] * (rows - 2))][:rows]
        out = step(engine, [1], [len(prompt) - 1], [wrong], plain)
        failures.require(int(out.accepted[0]) == 0, "a wrong first draft accepts nothing")
    most, mean = max(errors), statistics.fmean(errors)
    failures.require(
        most <= tolerance.most and mean <= tolerance.mean,
        f"log-probabilities within {tolerance.most} nats, {tolerance.mean} on average: {most:.4f}, {mean:.4f}",
    )
    failures.require(worst <= tolerance.most, f"every token is the likeliest or a near-tie: {worst:.4f} nats")
    _ragged(engine, torch, prompts, tolerance, failures)
    return failures


def _ragged(
    engine: TensorRTExecutor, torch: TorchExecutor, prompts: list[list[int]], tolerance: Tolerance, failures: Failures
) -> None:
    """Scattered slots of other lengths and row counts, one of them idle and full: each writes what it writes alone."""
    plain = SamplingParams(temperature=0)
    slots = [0, 2, engine.info.max_batch_size - 1][: engine.info.max_batch_size]
    prompts = prompts[: len(slots)]
    most = engine.info.max_rows(len(slots))
    truth = [log_probabilities(torch, prompt, len(prompt) - 1)[0] for prompt in prompts]
    alone = []
    for slot, prompt in zip(slots, prompts, strict=True):
        prefill(engine, slot, prompt[:-1])
        alone.append(int(step(engine, [slot], [len(prompt) - 1], [[prompt[-1]]], plain).targets[0]))

    def same(given: Sequence[int], wanted: Sequence[int], what: str) -> None:
        near = [
            a == b or max(gap(t, a), gap(t, b)) <= tolerance.most for a, b, t in zip(given, wanted, truth, strict=False)
        ]
        failures.require(all(near), what)

    for _ in range(3):
        rows = [[p[-1], *([1] * (i % most))] for i, p in enumerate(prompts)]
        out = step(engine, slots, [len(p) - 1 for p in prompts], rows, plain)
        firsts = [int(out.targets[o]) for o in np.cumsum([0, *map(len, rows)])[:-1]]
        same(firsts, alone, f"first targets beside neighbours, rows {[*map(len, rows)]}, are those alone")
    engine.copy_prefix(slots[0], 1, len(prompts[0]) - 1)
    copied = int(step(engine, [1], [len(prompts[0]) - 1], [[prompts[0][-1]]], plain).targets[0])
    same([copied], alone[:1], "a copied prefix continues like its source")


def compare_texts(
    engine: Engine, torch: TorchExecutor, prompts: list[list[int]], tolerance: Tolerance, failures: Failures
) -> dict[str, Any]:
    """The whole engine's greedy text with lookup on and off, and its speed after a first time that is not counted."""
    seconds = {True: 0.0, False: 0.0}
    tokens = accepted = 0
    for prompt in prompts:
        texts: dict[bool, list[int]] = {}
        for lookup in (True, False, True, False):
            done = engine.generate(prompt, max_tokens=OUTPUT, temperature=0, ignore_eos=True, lookup=lookup)
            if lookup in texts:
                seconds[lookup] += done.finish.stats.decode_time
                accepted += sum(source.accepted for source in done.finish.stats.sources.values())
            texts[lookup] = [t.token for t in done.tokens]
        truth = log_probabilities(torch, [*prompt, *texts[True][:-1]], len(prompt) - 1)
        tokens += len(texts[True])
        failures.require(
            gap_where_they_part(texts[True], texts[False], truth) <= tolerance.most,
            f"text is the same with lookup on and off, after {len(prompt)} tokens",
        )
    failures.require(accepted > 0, f"copies were accepted: {accepted} tokens")
    rates = {name: tokens / max(seconds[on], 1e-9) for name, on in (("lookup", True), ("plain", False))}
    return {"tokens": tokens, "accepted": accepted, **{f"{name}_tokens_per_second": r for name, r in rates.items()}}


class Shape(NamedTuple):
    """One verify to time."""

    tier: str
    batch: int
    rows: int
    context: int
    kind: str


def time_tiers(engine: TensorRTExecutor, contexts: Sequence[int] = (128, 1024)) -> list[dict[str, Any]]:
    """A verify of each tier's shape, greedy and with logits: its first time, and the median of later ones in turns."""
    rng = np.random.default_rng(0)
    params = {"greedy": SamplingParams(temperature=0), "sampled": SamplingParams(temperature=1.0, seed=1)}
    shapes = [
        Shape(tier.name, tier.batch, rows, context, kind)
        for tier in engine.info.tiers
        if tier.name != "prefill"
        for context in contexts
        if context + tier.rows <= engine.info.max_seq_len
        for rows in sorted({1, tier.rows})
        for kind in params
    ]
    tokens = {s: rng.integers(0, engine.info.vocab_size, (s.batch, s.rows)).tolist() for s in shapes}

    def run(shape: Shape) -> float:
        begin = time.perf_counter()
        step(engine, range(shape.batch), [shape.context] * shape.batch, tokens[shape], params[shape.kind])
        return time.perf_counter() - begin

    first = {shape: run(shape) for shape in shapes}
    begin = time.monotonic()
    while time.monotonic() - begin < WARM_SECONDS:
        for shape in shapes:
            run(shape)
    times: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for _ in range(REPEATS):
        for shape in shapes:
            times[shape].append(run(shape))
    return [{**s._asdict(), "first_ms": first[s] * 1e3, "median_ms": statistics.median(times[s]) * 1e3} for s in shapes]


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


def runtime_here(asked: str | None) -> tuple[str, str]:
    """The runtime to run and the GPU, for people. Raises ExecutorError, in one line, when there is none to run on."""
    if (missing := tensorrt_cuda.missing_gpu()) is not None:
        raise ExecutorError(missing)
    from cuda.core import Device

    capability = tensorrt_cuda.capability_of(0)
    name = f"{Device(0).name}, compute capability {capability}"
    runs = tensorrt_cuda.runtime_for(capability)
    if asked == "tensorrt_rtx" and runs != asked:
        raise ExecutorError(f"TensorRT-RTX does not run on {name}; full TensorRT does")
    try:
        load_runtime(asked or runs)  # type: ignore[arg-type]
    except BuildError as e:
        why = "" if runs == "tensorrt_rtx" else "TensorRT-RTX does not run on it, and "
        raise ExecutorError(f"{name}: {why}{e}") from e
    return asked or runs, name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "smollm2-135m-rtx.yaml")
    parser.add_argument("--engine", type=Path, help="an engine directory to run, or to build into")
    parser.add_argument("--runtime", choices=("tensorrt", "tensorrt_rtx"), help="default: what this GPU runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        runtime, gpu = runtime_here(options.runtime)
    except ExecutorError as e:
        print(f"not run: {e}", file=sys.stderr)
        return NOTHING_TO_RUN_ON
    print(f"{gpu}, {runtime}")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            result = measure(options.recipe, runtime, options.engine or Path(scratch) / "engine", Path(scratch))
    except (BuildError, CheckpointError, ExecutorError, RecipeError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    result["device"] = gpu
    print_table(result)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if result["failures"] else 0


def measure(recipe: Path, runtime: str, directory: Path, scratch: Path) -> dict[str, Any]:
    """Build into ``directory``, compare and time. Kernels are kept in ``scratch``, so that the first load has none."""
    seconds = {}
    begin = time.monotonic()
    manifest = build(recipe, runtime, directory)
    seconds["build"], begin = time.monotonic() - begin, time.monotonic()
    engine = TensorRTExecutor.load(directory, manifest, kernel_cache=scratch / "kernels")
    seconds["load"] = time.monotonic() - begin
    checkpoint = builder.prepare(load_recipe(recipe, [f"tensorrt.runtime={runtime}"])).checkpoint
    # Half-precision weights, float32 arithmetic: what differs is the engine's arithmetic alone.
    torch = TorchExecutor(manifest.model, checkpoint.tensors(), manifest.limits, manifest.tiers)
    prompts, tolerance = prompts_of(manifest.model.vocab_size), TOLERANCE[manifest.model.dtype]
    try:
        try:
            failures = compare(engine, torch, prompts, tolerance)
            figures = time_tiers(engine)
        finally:
            engine.close()
        begin = time.monotonic()
        loaded = load_engine(directory, Overrides(kernel_cache=scratch / "kernels"))
        seconds["load_again"] = time.monotonic() - begin
        whole = Engine(loaded.engine, loaded.tokenizer)
        try:
            texts = compare_texts(whole, torch, prompts, tolerance, failures)
        finally:
            whole.close()
    finally:
        torch.close()
    info = io.PlanInfo.model_validate(manifest.target_info)
    return {
        "runtime": f"{info.runtime} {info.runtime_version}",
        "dtype": manifest.model.dtype,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "kernel_cache_bytes": sum(f.stat().st_size for f in (scratch / "kernels").glob("*")),
        "failures": list(failures),
        "steps": figures,
        "texts": texts,
    }


def print_table(result: dict[str, Any]) -> None:
    print(f"\n{'tier':<6} {'batch':>5} {'rows':>4} {'context':>7} {'kind':<8} {'first ms':>9} {'median ms':>9}")
    for f in result["steps"]:
        print(
            f"{f['tier']:<6} {f['batch']:>5} {f['rows']:>4} {f['context']:>7} {f['kind']:<8} {f['first_ms']:>9.2f} "
            f"{f['median_ms']:>9.3f}"
        )
    seconds, texts = result["seconds"], result["texts"]
    print(
        f"\nbuilt in {seconds['build']} s, loaded in {seconds['load']} s, again in {seconds['load_again']} s with "
        f"{result['kernel_cache_bytes']:,} bytes of kept kernels"
    )
    print(
        f"{texts['tokens']} tokens that repeat their prompts: {texts['lookup_tokens_per_second']:.0f} a second with "
        f"lookup, {texts['plain_tokens_per_second']:.0f} without"
    )


if __name__ == "__main__":
    sys.exit(main())
