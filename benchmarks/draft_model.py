"""A draft model beside prompt lookup: with and without, measured and modelled.

``python -m benchmarks.draft_model ENGINE_DIR [--json OUT]``

**Measured.** There is no small model with SmolLM2-135M's tokenizer that is smaller, so the draft model is a piece of
it: its first k layers of 30, without any training. Such a piece is a poor drafter for its cost; the figures show what
the engine makes of one, not what a trained draft model gives. Four ways to decode take turns in one process: plain,
copies alone, chains alone, both; chains once at full length always, once as the engine's gate allows. One thread
computes, and what counts is its processor time in verifies and in drafting, so that a busy machine does not decide.

**Modelled.** The traces' outputs are forced, no model runs, and time is added up from the cost curve of a GPU
(``gpu-modelled``). The draft model is a coin: each draft is the right token with probability p, and costs a given
share of the main model's step. Scheduler, copies, chains, gate and rows are the real ones.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import click
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from benchmarks.forced import ForcedExecutor
from benchmarks.report import table
from benchmarks.session import Run, median
from benchmarks.workloads import cases
from trtserve import engine_dir
from trtserve.drafters.base import ChainDrafter, ChainRequest
from trtserve.drafters.draft_model import DraftModel
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Finish, GenerationRequest
from trtserve.engine_dir import CostCurve, DraftModelRecord, Manifest
from trtserve.executor.base import Executor, ExecutorInfo, StepInput, StepOutput
from trtserve.executor.calibrate import measure
from trtserve.executor.torch import TorchExecutor
from trtserve.lookup.drafter import Drafter
from trtserve.replay.curves import CostModel, load_curve
from trtserve.replay.traces import Trace, read_traces
from trtserve.sampling import SamplingParams
from trtserve.settings import Limits, PromptLookup, Speculative, plan_draft_tiers, plan_tiers
from trtserve.tokenizer import Tokenizer

NUM_DRAFTS = 4
LIMITS = Limits(max_batch_size=1, max_seq_len=2048, prefill_chunk=512)
TRACES = Path(__file__).parent / "traces"


def manifest_with(manifest: Manifest, speculative: Speculative, limits: Limits, draft: DraftModelRecord) -> Manifest:
    fields = {"speculative": speculative, "limits": limits, "tiers": plan_tiers(limits, speculative)}
    return manifest.model_copy(update={**fields, "draft_model": draft})


def first_layers(weights: Path, manifest: Manifest, layers: int) -> TorchExecutor:
    """The first ``layers`` layers of an engine's model, with its embedding, last norm and head."""
    config = manifest.model.model_copy(update={"num_layers": layers})

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        with safe_open(weights, framework="pt") as f:
            for name in config.tensor_shapes():
                yield name, f.get_tensor(name)

    return TorchExecutor(config, tensors(), LIMITS, plan_draft_tiers(LIMITS), threads=1)


@dataclass
class Watch:
    """Processor seconds of the scheduler's thread in the models' forwards."""

    seconds: float = 0.0
    since: float = 0.0

    def __enter__(self) -> None:
        self.since = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.thread_time() - self.since


class Timed(ForcedExecutor):
    """An executor whose verifies are timed."""

    def __init__(self, inner: Executor, watch: Watch) -> None:
        super().__init__(inner)
        self._watch = watch

    def step(self, batch: StepInput) -> StepOutput:
        with self._watch:
            return super().step(batch)


class TimedDraftModel(DraftModel):
    """A draft model whose chains are timed."""

    watch: Watch

    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        with self.watch:
            return super().draft(wanted)


@dataclass
class Way:
    """One way to decode: an engine, or the settings of one."""

    name: str
    engine: LocalEngine
    lookup: bool
    watch: Watch


def generate(way: Way, prompt: Sequence[int], tokens: int) -> tuple[Run, float]:
    """A generation, and the processor seconds of its verifies and chains."""
    way.watch.seconds = 0.0
    params = SamplingParams(temperature=0, max_tokens=tokens)
    out: list[int] = []
    for event in way.engine.submit(GenerationRequest(prompt, params, lookup=way.lookup)):
        if isinstance(event, Finish):
            if event.reason == "error":
                raise RuntimeError(event.error)
            return Run(out, "", event.stats), way.watch.seconds
        out += [t.token for t in event.tokens]
    raise RuntimeError("the generation ended without a finish")


def measured(
    directory: Path, layers: Sequence[int], kinds: Sequence[str], count: int, tokens: int, repeats: int
) -> Any:
    """Rows of the first table, one per draft model and kind."""
    manifest = engine_dir.load(directory)
    tokenizer = Tokenizer.load(directory, manifest.tokenizer)
    weights = directory / engine_dir.WEIGHTS_NAME
    speculative = Speculative(drafter="draft_model", num_drafts=NUM_DRAFTS, prompt_lookup=PromptLookup())
    tiers = plan_tiers(LIMITS, speculative)

    def main_model() -> TorchExecutor:
        return TorchExecutor.load_weights(directory, manifest.model, LIMITS, tiers, threads=1)

    verify_curve = _curve(main_model())
    rows = []
    for kept in layers:
        record = DraftModelRecord(model=manifest.model, weights_digest="0" * 64)
        draft_curve = _curve(first_layers(weights, manifest, kept))
        gated = record.model_copy(update={"cost_curve": draft_curve})
        ways = []
        for name, gate, chained in (("", False, False), ("", False, True), (", gated", True, True)):
            about = manifest_with(manifest, speculative, LIMITS, gated if gate else record)
            about = about.model_copy(update={"cost_curve": verify_curve if gate else None})
            watch = Watch()
            chain = None
            if chained:
                model, vocab = first_layers(weights, manifest, kept), manifest.model.vocab_size
                chain = TimedDraftModel(model, slots=1, positions=LIMITS.max_seq_len, vocab_size=vocab)
                chain.watch = watch
            drafter = Drafter(PromptLookup(), cost=verify_curve)
            main_timed = Timed(main_model(), watch)
            engine = LocalEngine(main_timed, drafter, tokenizer, about, hermetic=True, chain_drafter=chain)
            for lookup in (False, True):
                way = ("both" if lookup else "chains") if chained else ("copies" if lookup else "plain")
                ways.append(Way(way + name, engine, lookup, watch))
        for kind in kinds:
            rows.append(_measure_kind(ways, tokenizer, kind, count, tokens, repeats, kept, draft_curve, verify_curve))
            click.echo(json.dumps(rows[-1]), err=True)
        for way in ways:
            way.engine.close()
    return rows


def _curve(executor: TorchExecutor) -> CostCurve:
    try:
        return measure(executor, contexts=(256,), repeats=5, seconds=20, threads=1, clock=time.thread_time)
    finally:
        executor.close()


def _measure_kind(
    ways: Sequence[Way], tokenizer: Tokenizer, kind: str, count: int, tokens: int, repeats: int, kept: int,
    draft: CostCurve, verify: CostCurve,
) -> dict[str, Any]:  # fmt: skip
    seconds: dict[str, float] = defaultdict(float)
    rounds: dict[str, int] = defaultdict(int)
    model, produced, differing = [0, 0], 0, 0
    every = cases(kind)
    for case in every[:: max(len(every) // count, 1)][:count]:
        text = tokenizer.apply_chat_template(list(case.messages), add_generation_prompt=True)
        prompt = [int(t) for t in tokenizer.encode(text, add_bos=False, allow_special=True)]
        runs: dict[str, list[tuple[Run, float]]] = defaultdict(list)
        for _ in range(repeats):
            for way in ways:
                runs[way.name].append(generate(way, prompt, tokens))
        produced += len(runs["plain"][-1][0].tokens)
        for name, own in runs.items():
            seconds[name] += median([took for _, took in own])
            rounds[name] += own[-1][0].stats.rounds
            differing += own[-1][0].tokens != runs["plain"][-1][0].tokens
        stats = runs["chains"][-1][0].stats.sources["model"]
        model[0] += stats.proposed
        model[1] += stats.accepted
    return {
        "layers": kept,
        "kind": kind,
        "draft_step": _step(draft) / _step(verify),
        "acceptance": model[1] / max(model[0], 1),
        "differing": differing,
        "tokens": produced,
        "tokens_per_round": {name: produced / n for name, n in rounds.items()},
        "speedup": {name: seconds["plain"] / s for name, s in seconds.items()},
    }


def _step(curve: CostCurve) -> float:
    return next(p.seconds for p in curve.points if p.batch == 1 and p.rows == 1)


class ScriptedModel(Executor):
    """Writes a given sequence and computes nothing; adds up what its verifies would cost."""

    def __init__(self, cost: CostModel, speculative: Speculative, vocab_size: int, device: str) -> None:
        self.info = ExecutorInfo(
            max_batch_size=1, max_seq_len=1 << 16, prefill_chunk=512, vocab_size=vocab_size,
            tiers=plan_tiers(Limits(max_batch_size=1), speculative), exact=True, device=device,
        )  # fmt: skip
        self._cost = cost
        self.script = np.empty(0, np.int32)
        self.time = 0.0

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        pass

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        pass

    def step(self, batch: StepInput) -> StepOutput:
        rows = int(batch.num_rows[0])
        self.time += self._cost.time(1, rows - 1)
        targets = self.script[np.minimum(int(batch.lengths[0]) + 1 + np.arange(rows), len(self.script) - 1)]
        wrong = np.flatnonzero(batch.tokens[1:rows] != targets[: rows - 1])
        accepted = int(wrong[0]) if len(wrong) else rows - 1
        return StepOutput(targets, np.array([accepted], np.int32), np.zeros(1, np.bool_), [None])

    def close(self) -> None:
        pass


class Coin(ChainDrafter):
    """A draft model that is right with probability ``p``, position by position, and takes ``step`` a token."""

    def __init__(self, model: ScriptedModel, p: float, step: float) -> None:
        self._model, self._p, self._step = model, p, step

    def begin(self, slot: int, keep: int) -> None:
        pass

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        pass

    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        chains = []
        for request in wanted:
            start = len(request.tokens)
            chain = self._model.script[start : start + request.limit].copy()
            for i in range(len(chain)):
                if random.Random(f"{start + i} {len(self._model.script)}").random() >= self._p:
                    chain[i] = (chain[i] + 1) % self._model.info.vocab_size
            self._model.time += self._step * len(chain)
            chains.append(chain)
        return chains

    def close(self) -> None:
        pass


class NoText:
    """Decodes nothing."""

    def stream_decoder(self) -> NoText:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


def modelled(
    manifest: Manifest, curve_name: str, traces: Sequence[Trace], probabilities: Sequence[float], draft_step: float
) -> list[dict[str, Any]]:
    """Rows of the second table, one per workload and p: decode time over that of plain decoding, under a curve."""
    curve = load_curve(curve_name).model_copy(update={"device": "modelled"})
    cost = CostModel(curve)
    points = [p.model_copy(update={"seconds": draft_step * cost.step(p.batch)}) for p in curve.points if p.rows == 1]
    record = DraftModelRecord(
        model=manifest.model, weights_digest="0" * 64, cost_curve=CostCurve(device="modelled", points=tuple(points))
    )
    speculative = Speculative(drafter="draft_model", num_drafts=NUM_DRAFTS, prompt_lookup=PromptLookup())
    about = manifest_with(manifest, speculative, LIMITS, record).model_copy(update={"cost_curve": curve})
    by_workload: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_workload[trace.workload].append(trace)

    def times(p: float | None, lookup: bool) -> dict[str, float]:
        model = ScriptedModel(cost, speculative, manifest.model.vocab_size, "modelled")
        chain = None if p is None else Coin(model, p, draft_step * cost.step(1))
        drafter = Drafter(PromptLookup(), cost=curve) if lookup else None
        engine = LocalEngine(model, drafter, NoText(), about, hermetic=True, chain_drafter=chain)
        out = {}
        for workload, mine in by_workload.items():
            model.time = 0.0
            for trace in mine:
                model.script = np.array([*trace.prompt, *trace.output], np.int32)
                params = SamplingParams(temperature=0, max_tokens=len(trace.output), ignore_eos=True)
                for _ in engine.submit(GenerationRequest(list(trace.prompt), params)):
                    pass
            out[workload] = model.time
        engine.close()
        return out

    plain = {w: sum(len(t.output) for t in mine) * cost.step(1) for w, mine in by_workload.items()}
    copies = times(None, True)
    rows = []
    for p in probabilities:
        chains, both = times(p, False), times(p, True)
        rows += [
            {
                "workload": w,
                "p": p,
                "copies": plain[w] / copies[w],
                "chains": plain[w] / chains[w],
                "both": plain[w] / both[w],
            }
            for w in sorted(by_workload)
        ]
    return rows


WAYS = ("copies", "chains", "both", "chains, gated", "both, gated")


def show(results: dict[str, Any]) -> str:
    """Both tables, as Markdown."""
    out = []
    if rows := results.get("measured"):
        out += [
            "Measured, SmolLM2-135M on this CPU; the draft model is its first layers, untrained for the purpose. "
            "Speed-up of decoding over plain, in one thread's processor time; tokens per round in brackets.",
            "",
            table(
                ["", "layers of 30", "draft step / step", "drafts accepted", *WAYS, "texts that differ"],
                [
                    [
                        row["kind"], str(row["layers"]), f"{row['draft_step']:.2f}", f"{row['acceptance']:.0%}",
                        *(f"{row['speedup'][w]:.2f} ({row['tokens_per_round'][w]:.2f})" for w in WAYS),
                        str(row["differing"]),
                    ]
                    for row in rows
                ],
            ),
        ]  # fmt: skip
    if rows := results.get("modelled"):
        out += [
            "",
            f"Modelled, {results['curve']}: forced outputs, a draft step of {results['draft_step']:g} of a step, "
            f"chains of up to {NUM_DRAFTS}. Speed-up of decoding over plain.",
            "",
            table(
                ["workload", "p", "copies", "chains", "both"],
                [[r["workload"], f"{r['p']:g}", *(f"{r[k]:.2f}" for k in ("copies", "chains", "both"))] for r in rows],
            ),
        ]
    return "\n".join(out)


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@click.option("--layers", default="6,15,24", show_default=True, help="layers kept, a draft model each; empty: none")
@click.option("--kinds", default="code_edit,chat,prose", show_default=True, help="workloads measured")
@click.option("--cases", "count", default=2, show_default=True, type=click.IntRange(1, 30), help="prompts a kind")
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(8, 512), help="output tokens a run")
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1, 15), help="runs each, in turn")
@click.option("--curve", default="gpu-modelled", show_default=True, help="the cost curve modelled under")
@click.option("--traces", default=12, show_default=True, type=click.IntRange(1, 100), help="traces a workload")
@click.option("--draft-step", default=0.0625, show_default=True, help="a draft token's time, in steps")
@click.option("--json", "out", type=click.Path(path_type=Path), help="also write the figures here")
def main(
    directory: Path, layers: str, kinds: str, count: int, tokens: int, repeats: int, curve: str, traces: int,
    draft_step: float, out: Path | None,
) -> None:  # fmt: skip
    results: dict[str, Any] = {"curve": curve, "draft_step": draft_step}
    kept = [int(k) for k in layers.split(",") if k]
    if kept:
        results["measured"] = measured(directory, kept, kinds.split(","), count, tokens, repeats)
    chosen: dict[str, list[Trace]] = defaultdict(list)
    for name in ("model", "written"):
        for trace in read_traces(TRACES / f"{name}.jsonl.gz"):
            if len(chosen[trace.workload]) < traces:
                chosen[trace.workload].append(trace)
    flat = [trace for mine in chosen.values() for trace in mine]
    results["modelled"] = modelled(engine_dir.load(directory), curve, flat, (0.5, 0.7, 0.85), draft_step)
    click.echo(show(results))
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
