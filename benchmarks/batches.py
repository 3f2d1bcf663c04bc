"""Lookup on against off by batch: so many requests at once, in real runs, with the same requests either way.

``python -m benchmarks.batches ENGINE_DIR [--batches 1,4,8,16,32] [--json FILE]``

The engine directory must hold as many sequences as the largest batch. Requests are sent together and decoded side by
side, with lookup on and off in turns; a turn ends when the first of them has all its tokens, so that the batch is whole
all the time, as in a server that is never without work. Throughput is output tokens over the time of the rounds and of
the scheduler, which drafts; prefill does not count, and after the first turn the slots hold the prompts already. The
mix has every kind of workload in turn; prose is the hard case: hardly anything to copy.

The modelled rows are replays of the model's own recorded outputs in batches, under cost curves that ship.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is imported: spinning OpenMP threads falsify every figure on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import click

from benchmarks import report
from benchmarks.session import Session, median
from benchmarks.traces.read import shipped
from benchmarks.workloads import KINDS, cases
from trtserve.engine.protocol import Delta, EngineMetrics, GenerationRequest
from trtserve.engine_dir import CostCurve
from trtserve.replay.core import Limits, replay
from trtserve.replay.curves import CostModel, load_curve
from trtserve.replay.policies import Draft, NativePolicy
from trtserve.sampling import SamplingParams
from trtserve.settings import PromptLookup

BATCHES = (1, 4, 8, 16, 32)
SETS = ("mix", "prose")
CURVES = ("gpu-modelled", "row-0.05")


class Turn(NamedTuple):
    """One run of a batch. Times in seconds."""

    tokens: list[list[int]]
    rate: float  # output tokens a second, of rounds and scheduler
    scheduler: float  # the scheduler's share of both
    tokens_per_round: float  # of a sequence
    drafted: int
    accepted: int


@dataclass
class Turns:
    """What lookup on and off gave for one set and batch, turn by turn."""

    off: list[Turn] = field(default_factory=list)
    on: list[Turn] = field(default_factory=list)

    def row(self, name: str, batch: int) -> dict[str, Any]:
        """Medians over the turns; ``spread`` is half the distance between the quartiles of the turns' ratios."""
        ratios = sorted(b.rate / a.rate for a, b in zip(self.off, self.on, strict=True))
        pairs = [
            (a, b)
            for turn in zip(self.off, self.on, strict=True)
            for a, b in zip(*(t.tokens for t in turn), strict=True)
        ]
        return {
            "set": name,
            "batch": batch,
            "turns": len(ratios),
            "off_tokens_per_second": median([t.rate for t in self.off]),
            "on_tokens_per_second": median([t.rate for t in self.on]),
            "ratio": median(ratios),
            "spread": (ratios[-1 - len(ratios) // 4] - ratios[len(ratios) // 4]) / 2,
            "off_scheduler": median([t.scheduler for t in self.off]),
            "on_scheduler": median([t.scheduler for t in self.on]),
            "tokens_per_round": median([t.tokens_per_round for t in self.on]),
            "drafted": sum(t.drafted for t in self.on),
            "accepted": sum(t.accepted for t in self.on),
            "texts": len(pairs),
            "differing": sum(a[: len(b)] != b[: len(a)] for a, b in pairs),
        }


def prompts_of(session: Session, name: str, count: int) -> list[list[int]]:
    """``count`` prompts of a set: prose, or every kind in turn."""
    pools = [cases(kind) for kind in (KINDS if name == "mix" else (name,))]
    chosen = [pools[i % len(pools)][i // len(pools) % len(pools[i % len(pools)])] for i in range(count)]
    return [session.prompt(case) for case in chosen]


def run(session: Session, prompts: Sequence[list[int]], tokens: int, *, lookup: bool) -> Turn:
    """All prompts at once, until the first has ``tokens`` tokens. Raises RuntimeError when a generation fails."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    before = session.engine.metrics()
    running = [session.engine.submit(GenerationRequest(prompt, params, lookup=lookup)) for prompt in prompts]
    done = sum(before["finished_total"].values())
    while sum((after := session.engine.metrics())["finished_total"].values()) == done:
        time.sleep(0.002)
    for generation in running:
        generation.cancel()
    out: list[list[int]] = []
    for generation in running:
        out.append([])
        for event in generation:
            if isinstance(event, Delta):
                out[-1] += [t.token for t in event.tokens]
            elif event.reason == "error":
                raise RuntimeError(event.error)
    return _turn(before, after, out)


def _turn(before: EngineMetrics, after: EngineMetrics, tokens: list[list[int]]) -> Turn:
    def grown(key: str) -> Any:
        was, now = before[key], after[key]  # type: ignore[literal-required]
        return sum(now.values()) - sum(was.values()) if isinstance(now, dict) else now - was

    produced, scheduler = grown("generation_tokens_total"), grown("scheduler_seconds_total")
    seconds = scheduler + grown("forward_seconds_total")
    return Turn(
        tokens,
        produced / seconds,
        scheduler / seconds,
        produced / grown("round_sequences_total"),
        grown("draft_tokens_total"),
        grown("accepted_tokens_total"),
    )


def measure(
    session: Session, *, batches: Sequence[int] = BATCHES, sets: Sequence[str] = SETS, tokens: int = 64,
    repeats: int = 4, progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each set and batch. A small batch has more turns, over other prompts, so that each has about as many
    tokens. Raises ValueError where the engine holds fewer sequences than a batch has."""
    most = session.executor.info.max_batch_size
    if max(batches) > most:
        raise ValueError(f"batches of {max(batches)}: the engine directory holds {most} sequences")
    rows: list[dict[str, Any]] = []
    for name in sets:
        prompts = prompts_of(session, name, max(batches))
        run(session, prompts, 1, lookup=False)  # fills the slots
        turns: dict[int, Turns] = defaultdict(Turns)
        for repeat in range(repeats):
            for batch in batches:
                for group in range(min(max(8 // batch, 1), len(prompts) // batch)):
                    mine = prompts[group * batch : (group + 1) * batch]
                    for lookup in (False, True) if (repeat + group) % 2 else (True, False):
                        turn = run(session, mine, tokens, lookup=lookup)
                        (turns[batch].on if lookup else turns[batch].off).append(turn)
        for batch in batches:
            rows.append(turns[batch].row(name, batch))
            progress(rows[-1])
    return rows


class Steady(NativePolicy):
    """The drafter, and what its rounds give while the batch is whole: at a replay's end it is not, as in no server."""

    def __init__(self, settings: PromptLookup, curve: CostCurve, batch: int) -> None:
        super().__init__(settings, cost=curve)
        self._cost, self._batch, self._whole = CostModel(curve), batch, False
        self.tokens = 0
        self.steps = 0.0  # time, in verifies without drafts

    def propose(self, sequences: Sequence[Any], limits: Sequence[int]) -> list[Draft]:
        drafts = super().propose(sequences, limits)
        self._whole = len(sequences) == self._batch
        if self._whole:
            self.steps += self._cost.relative(self._batch, sum(d.extra_rows for d in drafts))
        return drafts

    def observe(self, sequence: Any, tokens: Sequence[int]) -> None:
        super().observe(sequence, tokens)
        if self._whole:
            self.tokens += len(tokens)

    @property
    def speedup(self) -> float:
        """Tokens a time, over those without drafts."""
        return self.tokens / self._batch / self.steps


def modelled(curves: Sequence[str] = CURVES, batches: Sequence[int] = BATCHES) -> list[dict[str, Any]]:
    """Speed-up of decoding over plain by curve, set and batch: replays of the model's own outputs, mixed or prose.

    Prose is replayed three times over, so that there is enough of it for the largest batch.
    """
    traces = [t for _, t in sorted(enumerate(shipped(("model",))), key=lambda pair: (pair[0] % 17, pair[0]))]
    settings = PromptLookup()
    limits = Limits(settings.max_drafts, settings.batch_max_drafts, settings.max_seqs)
    rows = []
    for name in curves:
        curve = load_curve(name)
        for kind in SETS:
            mine = [t for t in traces if kind in ("mix", t.kind)]
            for batch in batches:
                policy = Steady(settings, curve, batch)
                replay(mine * (3 if kind == "prose" else 1), policy, batch=batch, limits=limits)
                rows.append({"curve": name, "set": kind, "batch": batch, "speedup": policy.speedup})
    return rows


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@click.option("--batches", default=",".join(map(str, BATCHES)), show_default=True, help="requests at once")
@click.option("--sets", default=",".join(SETS), show_default=True, help="mix, or kinds of workload")
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(8, 512), help="most output tokens")
@click.option("--repeats", default=4, show_default=True, type=click.IntRange(1, 15), help="turns of the largest batch")
@click.option("--cost-curve", "curve", help="weigh drafts with this curve, by name or file; default: the engine's")
@click.option("--json", "out", type=click.Path(path_type=Path), help="also write the figures here")
def main(
    directory: Path, batches: str, sets: str, tokens: int, repeats: int, curve: str | None, out: Path | None
) -> None:
    cost = None if curve is None else load_curve(curve)
    sizes = [int(b) for b in batches.split(",")]
    with Session(directory, cost_curve=cost, hermetic=False) as session:
        rows = measure(
            session,
            batches=sizes,
            sets=sets.split(","),
            tokens=tokens,
            repeats=repeats,
            progress=lambda row: click.echo(
                f"{row['set']} {row['batch']}: {row['ratio']:.3f}x ±{row['spread']:.3f}",
                err=True,
            ),
        )
    results = {"tokens": tokens, "repeats": repeats, "rows": rows, "modelled": modelled(batches=sizes)}
    click.echo(report.batches(results))
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
