"""Results of replays: summed by workload, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trtserve.replay.core import Replay, Result
from trtserve.replay.curves import CostModel


class Summary(NamedTuple):
    """One policy on one workload. Times are in the curve's unit: seconds of an engine's, steps of one that ships."""

    workload: str
    policy: str
    traces: int
    tokens: int
    rounds: int
    tokens_per_round: float
    rows_per_round: float
    wasted_per_round: float
    time: float
    plain_time: float
    speedup: float
    host_us_per_round: float


def summarize(workload: str, run: Replay, model: CostModel) -> Summary:
    rounds = max(run.rounds, 1)
    drafted, accepted = sum(r.drafted for r in run.results), sum(r.accepted for r in run.results)
    time, plain = run.time(model.time), run.plain_time(model.time)
    return Summary(
        workload,
        run.policy,
        len(run.results),
        run.tokens,
        run.rounds,
        run.tokens / rounds,
        1 + drafted / rounds,
        (drafted - accepted) / rounds,
        time,
        plain,
        plain / time if time else 1.0,
        run.host_ns / rounds / 1000,
    )


_COLUMNS = (
    ("workload", "{0.workload}"),
    ("policy", "{0.policy}"),
    ("traces", "{0.traces}"),
    ("tokens", "{0.tokens}"),
    ("tokens/round", "{0.tokens_per_round:.2f}"),
    ("rows/round", "{0.rows_per_round:.2f}"),
    ("wasted/round", "{0.wasted_per_round:.2f}"),
    ("time", "{0.time:.4g}"),
    ("without", "{0.plain_time:.4g}"),
    ("speed-up", "{0.speedup:.2f}x"),
    ("host us/round", "{0.host_us_per_round:.1f}"),
)


def table(summaries: Iterable[Summary]) -> str:
    """A plain-text table, a line per summary."""
    rows = [[name for name, _ in _COLUMNS], *([form.format(s) for _, form in _COLUMNS] for s in summaries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def as_json(summaries: Iterable[Summary]) -> list[dict[str, object]]:
    return [s._asdict() for s in summaries]


def by_source(results: Sequence[Result]) -> dict[str, tuple[int, int]]:
    """Drafts and accepted ones by source, of results whose rounds were kept."""
    counts: dict[str, tuple[int, int]] = {}
    for result in results:
        for part in result.kept:
            if part.draft.tokens:
                drafted, accepted = counts.get(part.draft.source, (0, 0))
                counts[part.draft.source] = (drafted + len(part.draft.tokens), accepted + part.accepted)
    return counts
