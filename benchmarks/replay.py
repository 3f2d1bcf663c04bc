"""Every policy on every trace under every cost curve: the evidence behind the default.

``python -m benchmarks.replay [--held-out] [--out FILE] [--policies NAMES]``

Modelled decode time, so one machine's noise has no part in it: rounds are replayed with the real drafter (or a peer's
rule) and priced by a curve. Speed-up is decode time without drafts over that with them. ``adaptive`` is replayed with
priors fitted on the half of the groups that a trace is *not* in; ``adaptive-shipped`` with those that ship, fitted on
all. ``--held-out`` replays the traces on which nothing was fitted or chosen, with what ships, and keeps its results
apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.policies.fit import fit
from benchmarks.policies.ngram import ModRule, NgramRule, PoolRule, SimpleRule
from benchmarks.policies.oracle import Oracle
from benchmarks.policies.suffix import FrequentRule, LongestRule, TrieRule
from benchmarks.traces.read import half, held_out, shipped
from trtserve.lookup.shared import SharedCache
from trtserve.replay.core import Limits, replay
from trtserve.replay.curves import CostModel, load_curve, shipped_curves
from trtserve.replay.policies import NativePolicy, Policy
from trtserve.replay.traces import Trace
from trtserve.settings import PromptLookup

RESULTS = Path(__file__).resolve().parent / "results"
OUT, HELD_OUT = RESULTS / "replay.json", RESULTS / "replay-heldout.json"
#: Rows that the largest of the policies may ask for.
MOST = 64
#: Batches, and the drafts a sequence may have in one, as settings ship.
BATCHES = (1, 4, 8, 16, 32)
BATCH_DRAFTS = PromptLookup().batch_max_drafts
#: Curves that say something about batches.
BATCH_CURVES = ("cpu-fp16", "cpu-fp32", "gpu-modelled", "row-0.05", "torch-fp16")
#: The default, and the same with other settings.
OURS = "adaptive"
VARIANTS = ("adaptive-shipped", "adaptive 8", "adaptive 16", "adaptive 64")
#: Drafts of our own policies, as settings ship.
DRAFTS = PromptLookup().max_drafts


class Rule(NamedTuple):
    """How a policy is made; ``make(curve's name)`` where it weighs costs, so that it is replayed for every curve."""

    make: Callable[[str], Policy]
    weighs: bool = False
    limit: int = MOST


def own(policy: str, drafts: int, priors: list[int] | None = None, *, shared: bool = False) -> Callable[[str], Policy]:
    def make(curve: str) -> Policy:
        settings = PromptLookup.model_validate({"policy": policy, "max_drafts": drafts})
        cache = SharedCache(16, 1, settings.shared_key_length) if shared else None
        return NativePolicy(settings, cost=load_curve(curve), shared=cache, priors=priors)

    return make


def oracle(most: int, *, shared: bool = False) -> Callable[[str], Policy]:
    def make(curve: str) -> Policy:
        model = CostModel(load_curve(curve))
        costs = [model.relative(1, n) for n in range(most + 1)]
        return Oracle(costs.__getitem__, most=most, shared=shared)

    return make


def fixed(policy: Callable[[], Policy]) -> Rule:
    return Rule(lambda _: policy())


def rules() -> dict[str, Rule]:
    """Policies that see one request at a time, then those with memory across requests (``+shared``)."""
    return {
        "transformers 10/2": fixed(lambda: NgramRule("", longest=2, shortest=1, drafts=10)),
        "vLLM earliest 8/2-5": fixed(lambda: NgramRule("", longest=5, shortest=2, drafts=8)),
        "vLLM latest 8/2-5 padded": fixed(
            lambda: NgramRule("", longest=5, shortest=2, drafts=8, latest=True, padded=True)
        ),
        "TensorRT-LLM NGram 5/3": fixed(lambda: PoolRule("", shared=False)),
        "TensorRT-LLM SA 8": fixed(lambda: LongestRule("", drafts=8)),
        "TensorRT-LLM SA 16": fixed(lambda: LongestRule("", drafts=16)),
        "longest of 3, 16": fixed(lambda: LongestRule("", drafts=16, shortest=3)),
        "llama.cpp simple": fixed(lambda: SimpleRule("")),
        "llama.cpp map-k": fixed(lambda: SimpleRule("", ratchet=True)),
        "SuffixDecoding": fixed(lambda: FrequentRule("")),
        "window 8": Rule(own("window", 8), limit=8),
        f"window {DRAFTS}": Rule(own("window", DRAFTS), limit=DRAFTS),
        OURS: Rule(own("adaptive", DRAFTS), True, DRAFTS),
        "adaptive-shipped": Rule(own("adaptive", DRAFTS), True, DRAFTS),
        "adaptive 8": Rule(own("adaptive", 8), True, 8),
        "adaptive 16": Rule(own("adaptive", 16), True, 16),
        "adaptive 64": Rule(own("adaptive", 64), True, 64),
        f"oracle {DRAFTS}": Rule(oracle(DRAFTS), True, DRAFTS),
        "oracle": Rule(oracle(MOST), True, MOST),
        "TensorRT-LLM NGram 5/3 +shared": fixed(lambda: PoolRule("")),
        "TensorRT-LLM SA 8 +shared": fixed(lambda: LongestRule("", drafts=8, shared=True)),
        "SGLang trie 12 +shared": fixed(lambda: TrieRule("")),
        "llama.cpp mod +shared": fixed(lambda: ModRule("")),
        "SuffixDecoding +shared": fixed(lambda: FrequentRule("", shared=True)),
        "window +shared": Rule(own("window", DRAFTS, shared=True), limit=DRAFTS),
        "adaptive +shared": Rule(own("adaptive", DRAFTS, shared=True), True, DRAFTS),
        "oracle +shared": Rule(oracle(MOST, shared=True), True, MOST),
    }


def workloads(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    grouped: dict[str, list[Trace]] = {}
    for trace in traces:
        grouped.setdefault(trace.workload, []).append(trace)
    return dict(sorted(grouped.items()))


class Numbers(NamedTuple):
    """One policy on one workload under one curve."""

    speedup: float
    tokens_per_round: float
    rows_per_round: float
    wasted_per_round: float
    host_us_per_round: float


def measure(rule: Rule, traces: Sequence[Trace], curves: Sequence[str]) -> dict[str, Numbers]:
    """By curve. A policy that does not weigh costs is replayed once and priced under each."""
    out: dict[str, Numbers] = {}
    run = None
    for curve in curves:
        if run is None or rule.weighs:
            run = replay(traces, rule.make(curve), limits=Limits(lone=rule.limit))
        rounds = run.rounds
        rows = sum(r.drafted for r in run.results)
        out[curve] = Numbers(
            run.speedup(CostModel(load_curve(curve)).time),
            run.tokens / rounds,
            rows / rounds,
            (rows - sum(r.accepted for r in run.results)) / rounds,
            run.host_ns / rounds / 1000,
        )
    return out


def cross_validated(traces: Sequence[Trace], curves: Sequence[str], priors: Sequence[list[int]]) -> dict[str, Numbers]:
    """Each half of a workload's traces with priors fitted on the other half; times added up."""
    out: dict[str, Numbers] = {}
    for curve in curves:
        time_of = CostModel(load_curve(curve)).time
        runs = []
        for side in (0, 1):
            mine = [t for t in traces if half(t) == side]
            policy = own("adaptive", DRAFTS, priors[1 - side])(curve)
            runs.append(replay(mine, policy, limits=Limits(lone=DRAFTS)))
        rounds = sum(r.rounds for r in runs)
        rows = sum(x.drafted for r in runs for x in r.results)
        accepted = sum(x.accepted for r in runs for x in r.results)
        out[curve] = Numbers(
            sum(r.plain_time(time_of) for r in runs) / sum(r.time(time_of) for r in runs),
            sum(r.tokens for r in runs) / rounds,
            rows / rounds,
            (rows - accepted) / rounds,
            sum(r.host_ns for r in runs) / rounds / 1000,
        )
    return out


def batches(traces: Sequence[Trace], curves: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Speed-up by curve, policy and batch, everything mixed: sequences of all workloads decoded side by side."""
    mixed = [t for _, t in sorted(enumerate(traces), key=lambda pair: (pair[0] % 17, pair[0]))]
    out: dict[str, dict[str, dict[str, float]]] = {}
    for curve in curves:
        cost = CostModel(load_curve(curve)).time
        for policy in ("window", "adaptive"):
            by_batch = out.setdefault(curve, {}).setdefault(f"{policy}, {BATCH_DRAFTS} drafts in a batch", {})
            for batch in BATCHES:
                limits = Limits(DRAFTS, BATCH_DRAFTS, MOST)
                by_batch[str(batch)] = replay(mixed, own(policy, DRAFTS)(curve), batch=batch, limits=limits).speedup(
                    cost
                )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay every policy on every trace under every curve.")
    parser.add_argument("--held-out", action="store_true", help="the held-out traces, without batches")
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--policies", help="only these, comma-separated; others are kept from the file")
    parser.add_argument("--curves", default=",".join(shipped_curves()), help="curves, comma-separated")
    parser.add_argument("--no-batches", action="store_true", help="leave the batches out")
    arguments = parser.parse_args()
    out: Path = arguments.out or (HELD_OUT if arguments.held_out else OUT)
    known, curves = rules(), arguments.curves.split(",")
    if arguments.held_out:
        known = {n: rule for n, rule in known.items() if n not in VARIANTS}
    names = arguments.policies.split(",") if arguments.policies else list(known)
    if unknown := set(names) - set(known):
        parser.error(f"policies {', '.join(sorted(unknown))} are not known; allowed: {', '.join(known)}")
    everything = held_out() if arguments.held_out else shipped()
    traces = workloads(everything)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"policies": {}}
    results |= {
        "curves": {name: load_curve(name).device for name in curves},
        "workloads": {name: {"traces": len(t), "tokens": sum(len(x.output) for x in t)} for name, t in traces.items()},
        "drafts": DRAFTS,
    }
    fitted = OURS in names and not arguments.held_out
    priors = [fit([t for t in everything if half(t) == side]) for side in (0, 1)] if fitted else []

    def one(name: str, of: Sequence[Trace]) -> dict[str, Numbers]:
        return cross_validated(of, curves, priors) if priors and name == OURS else measure(known[name], of, curves)

    if not arguments.no_batches and not arguments.held_out:
        results["batches"] = batches(everything, [c for c in curves if c in BATCH_CURVES])
    for name in names:
        begin = time.monotonic()
        results["policies"][name] = {
            workload: {curve: numbers._asdict() for curve, numbers in (one(name, of)).items()}
            for workload, of in traces.items()
        }
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
