"""Decode speed: lookup on against off, and both against transformers, on the same weights, threads and prompts.

``python -m benchmarks.speed ENGINE_DIR [--json FILE]``

Every ratio comes from one process in which the alternatives take turns, so a machine that slows down slows all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before torch is imported: spinning OpenMP threads falsify every figure on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import click

from benchmarks import reference, report
from benchmarks.report import VARIANTS
from benchmarks.session import Run, Session, median
from benchmarks.workloads import Case, cases

#: The kinds measured, and whether a written answer or an assistant prefix makes sense for them.
KINDS = ("code_edit", "json_rewrite", "tool_echo", "prose")
#: Output tokens of transformers' plain decoding: every token takes it as long, and the engine's runs are longer.
PLAIN_TOKENS = 32


@dataclass
class Row:
    """One kind in one variant. Rates are tokens over seconds, summed over its cases (medians of the repeats)."""

    kind: str
    variant: str
    cases: int = 0
    tokens: int = 0
    off_seconds: float = 0.0
    on_seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    differing: int = 0
    transformers_seconds: float = 0.0
    transformers_lookup_seconds: float = 0.0
    transformers_differing: int = 0
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Decode tokens/s with lookup on, over off."""
        return self.off_seconds / self.on_seconds

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "ratio": self.ratio, "tokens_per_round": self.tokens / max(self.rounds, 1)}


def chosen(kind: str, variant: str, count: int) -> list[Case]:
    """``count`` cases spread over a kind's files or forms; only those that have what the variant needs."""
    able = [c for c in cases(kind) if variant == "own" or (c.prefix if variant == "prefix" else c.answer)]
    step = max(len(able) // count, 1)
    return able[1::step][:count]


def _time(run: Run) -> float:
    """Decode seconds per output token, so that runs that end early compare fairly."""
    return run.stats.decode_time / max(run.stats.completion_tokens, 1)


@dataclass(frozen=True)
class Settings:
    """``cases`` prompts a kind; at most ``tokens`` output tokens, ``forced_tokens`` where the answer is forced;
    ``repeats`` runs each. ``baseline`` is a transformers model to time beside the engine, its own prompt lookup too if
    ``baseline_lookup``."""

    cases: int = 3
    tokens: int = 96
    forced_tokens: int = 160
    repeats: int = 3
    baseline: Any = None
    baseline_lookup: bool = True

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("cases", "tokens", "forced_tokens", "repeats")}


def measure(
    session: Session,
    settings: Settings,
    variants: tuple[str, ...] = tuple(VARIANTS),
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Rows for every kind and variant that exists."""
    rows = []
    for variant in variants:
        for kind in KINDS:
            row = Row(kind, variant)
            for case in chosen(kind, variant, settings.cases):
                _measure_case(session, row, case, settings)
            if row.cases:
                rows.append(row)
                progress(row)
    return rows


def _measure_case(session: Session, row: Row, case: Case, settings: Settings) -> None:
    forced = row.variant == "forced"
    prompt = session.prompt(case, prefix=row.variant == "prefix")
    answer = session.tokens(case.answer)[: settings.forced_tokens] if forced and case.answer else None
    off: list[Run] = []
    on: list[Run] = []
    for turn in range(settings.repeats):
        off.append(session.run(prompt, lookup=False, max_tokens=settings.tokens, answer=answer))
        on.append(session.run(prompt, lookup=True, max_tokens=settings.tokens, answer=answer))
        if turn == 0 and settings.baseline is not None and not forced:
            _time_baseline(row, prompt, on[0].tokens, settings)
    run = on[-1]
    slow, fast = median([_time(r) for r in off]), median([_time(r) for r in on])
    count = len(run.tokens)
    row.cases += 1
    row.tokens += count
    row.off_seconds += slow * count
    row.on_seconds += fast * count
    row.ratios.append(slow / fast)
    row.rounds += run.stats.rounds
    row.drafted += sum(s.proposed for s in run.stats.sources.values())
    row.accepted += sum(s.accepted for s in run.stats.sources.values())
    row.differing += off[-1].tokens != run.tokens


def _time_baseline(row: Row, prompt: list[int], tokens: list[int], settings: Settings) -> None:
    """Once, between the engine's turns: it takes several times as long as all of them."""
    expected, rate = reference.generate(settings.baseline, prompt, min(settings.tokens, PLAIN_TOKENS))
    row.transformers_seconds += len(tokens) / rate
    row.transformers_differing += expected != tokens[: len(expected)]
    if settings.baseline_lookup:
        _, rate = reference.generate(settings.baseline, prompt, settings.tokens, prompt_lookup_num_tokens=10)
        row.transformers_lookup_seconds += len(tokens) / rate


def scheduler_share(session: Session) -> float:
    """The scheduler's own time as a share of the forwards', over everything the session has run."""
    metrics = session.engine.metrics()
    return metrics["scheduler_seconds_total"] / metrics["forward_seconds_total"]


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@click.option("--variants", default=",".join(VARIANTS), show_default=True, help="what is decoded")
@click.option("--cases", "count", default=3, show_default=True, type=click.IntRange(1, 30), help="prompts per kind")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(16, 512), help="output tokens per run")
@click.option("--forced-tokens", default=160, show_default=True, type=click.IntRange(16), help="of a forced answer")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 15), help="runs each, in turn")
@click.option("--transformers", type=click.Choice(["all", "generate", "none"]), default="all", show_default=True,
              help="what of transformers is timed beside it")  # fmt: skip
@click.option("--json", "out", type=click.Path(path_type=Path), help="also write the figures here")
def main(
    directory: Path, variants: str, count: int, tokens: int, forced_tokens: int, repeats: int, transformers: str,
    out: Path | None,
) -> None:  # fmt: skip
    baseline = None if transformers == "none" else reference.load_llama(directory)
    settings = Settings(count, tokens, forced_tokens, repeats, baseline, transformers == "all")
    with Session(directory) as session:
        rows = measure(
            session,
            settings,
            tuple(variants.split(",")),
            lambda row: click.echo(f"{row.kind} {row.variant}: {row.ratio:.2f}x", err=True),
        )
        result = {
            "settings": settings.as_dict(),
            "rows": [row.as_dict() for row in rows],
            "scheduler_share": scheduler_share(session),
        }
    click.echo(report.speed(result))
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
