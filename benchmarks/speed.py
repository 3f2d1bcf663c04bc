"""Decode speed: lookup on against off, and both against transformers, on the same weights, threads and prompts.

Every ratio comes from one process in which the alternatives take turns, so a machine that slows down slows all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import reference
from benchmarks.session import Run, Session, median
from benchmarks.workloads import Case, cases

#: The kinds measured, and whether a written answer or an assistant prefix makes sense for them.
KINDS = ("code_edit", "json_rewrite", "tool_echo", "prose")
VARIANTS = {
    "own": "the model's own output",
    "prefix": "the model's own output after the answer's first lines",
    "forced": "output forced to the written answer; every verify is computed",
}


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


def measure(
    session: Session,
    *,
    variants: tuple[str, ...] = tuple(VARIANTS),
    count: int = 4,
    tokens: int = 128,
    repeats: int = 3,
    baseline: Any = None,
    baseline_lookup: bool = True,
    progress: Any = None,
) -> list[Row]:
    """Rows for every kind and variant that exists. ``baseline``: a transformers model to time beside the engine, its
    own prompt lookup too unless ``baseline_lookup`` is False."""
    rows = []
    for variant in variants:
        for kind in KINDS:
            row = Row(kind, variant)
            for case in chosen(kind, variant, count):
                _measure_case(session, row, case, tokens, repeats, baseline, baseline_lookup)
            if row.cases:
                rows.append(row)
                if progress:
                    progress(row)
    return rows


def _measure_case(
    session: Session, row: Row, case: Case, tokens: int, repeats: int, baseline: Any, baseline_lookup: bool
) -> None:
    forced = row.variant == "forced"
    prompt = session.prompt(case, prefix=row.variant == "prefix")
    answer = case.answer if forced else None
    off: list[Run] = []
    on: list[Run] = []
    for turn in range(repeats):
        off.append(session.run(prompt, lookup=False, max_tokens=tokens, answer=answer))
        on.append(session.run(prompt, lookup=True, max_tokens=tokens, answer=answer))
        if turn == 0 and baseline is not None and not forced:
            # Once, between the engine's turns: it takes several times as long as all of them.
            expected, rate = reference.generate(baseline, prompt, tokens)
            row.transformers_seconds += len(on[0].tokens) / rate
            # Both have the end token that finished the answer.
            row.transformers_differing += expected != on[0].tokens
            if baseline_lookup:
                _, rate = reference.generate(baseline, prompt, tokens, prompt_lookup_num_tokens=10)
                row.transformers_lookup_seconds += len(on[0].tokens) / rate
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


def scheduler_share(session: Session) -> float:
    """The scheduler's own time as a share of the forwards', over everything the session has run."""
    metrics = session.engine.metrics()
    return metrics["scheduler_seconds_total"] / metrics["forward_seconds_total"]


def load_baseline(directory: Path) -> Any:
    return reference.load_llama(directory)
