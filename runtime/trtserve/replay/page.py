"""Replays as one HTML page without scripts: which tokens were copied, from where, and what each round cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from trtserve.replay.core import Replay, Result, Round
from trtserve.replay.curves import CostModel
from trtserve.replay.report import Summary

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8884}
td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}
pre{white-space:pre-wrap;background:#8881;padding:.8rem;border-radius:.4rem}
summary{cursor:pointer}
.history{background:#2e7d3255}.prediction{background:#1565c055}.shared{background:#ef6c0055}.oracle{background:#6a1b9a55}
.model{border-bottom:1px dotted #888}
.round{border-left:2px solid #888a;padding-left:1px}
rect.with{fill:#2e7d32}rect.without{fill:#8888}
"""

Decode = Callable[[Sequence[int]], str]


def page(runs: Sequence[tuple[Summary, Replay]], model: CostModel, curve: str, decode: Decode) -> str:
    """The page. ``decode`` turns token ids into text; runs kept their rounds."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Replay</title>',
        f"<style>{_STYLE}</style><h1>Replay</h1><p>Cost of a verify: {escape(curve)}.</p>",
        _bars([summary for summary, _ in runs]),
        _table([summary for summary, _ in runs]),
        '<p><span class="history">history</span> <span class="prediction">prediction</span> '
        '<span class="shared">shared</span>: copied, by source. <span class="model">Dotted</span>: the model\'s own '
        "choice, one a round. A line begins each round; hold the pointer over it for its drafts and its cost.</p>",
    ]
    for summary, run in runs:
        parts.append(f"<h2>{escape(summary.workload)}, policy {escape(summary.policy)}</h2>")
        parts += [_result(result, model, decode) for result in run.results]
    return "\n".join(parts) + "</html>\n"


def _table(summaries: Sequence[Summary]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in Summary._fields)
    rows = (
        "<tr>" + "".join(f"<td>{escape(f'{v:.3g}' if isinstance(v, float) else str(v))}</td>" for v in s) + "</tr>"
        for s in summaries
    )
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _bars(summaries: Sequence[Summary]) -> str:
    """Speed-ups as bars; the light part is 1, decoding without drafts."""
    most = max((s.speedup for s in summaries), default=1.0)
    scale = 480 / max(most, 1.0)
    lines = []
    for i, s in enumerate(summaries):
        y = 24 * i
        lines.append(
            f'<text x="0" y="{y + 15}" font-size="13" fill="currentColor">{escape(f"{s.workload}, {s.policy}")}</text>'
            f'<rect class="with" x="300" y="{y + 3}" width="{s.speedup * scale:.0f}" height="15"/>'
            f'<rect class="without" x="300" y="{y + 3}" width="{scale:.0f}" height="15"/>'
            f'<text x="{305 + s.speedup * scale:.0f}" y="{y + 15}" font-size="13" fill="currentColor">'
            f"{s.speedup:.2f}x</text>"
        )
    height = 24 * len(summaries)
    return f'<svg role="img" aria-label="Speed-up" width="860" height="{height}">{"".join(lines)}</svg>'


def _result(result: Result, model: CostModel, decode: Decode) -> str:
    trace = result.trace
    time = sum(model.time(1, part.draft.extra_rows) for part in result.kept)
    plain = len(trace.output) * model.time(1, 0)
    title = trace.name or f"{len(trace.prompt)} tokens of prompt"
    body = "".join(_round(part, result, model, decode) for part in result.kept)
    return (
        f"<details><summary>{escape(title)}: {len(trace.output)} tokens in {result.rounds} rounds, alone "
        f"{plain / time if time else 1:.2f}x; {result.accepted} of {result.drafted} drafts accepted</summary>"
        f"<details><summary>prompt</summary><pre>{escape(decode(trace.prompt))}</pre></details><pre>{body}</pre></details>"
    )


def _round(part: Round, result: Result, model: CostModel, decode: Decode) -> str:
    output, draft = result.trace.output, part.draft
    copied = output[part.start : part.start + part.accepted]
    own = output[part.start + part.accepted : part.start + part.emitted]
    cost = model.relative(1, draft.extra_rows)
    about = f"{part.emitted} tokens for {cost:.2f} of a step"
    if draft.tokens:
        about += f"; drafted {len(draft.tokens)} from {draft.source}, match {draft.match}: {decode(draft.tokens)!r}"
    spans = f'<span class="{escape(draft.source or "history")}">{escape(decode(copied))}</span>' if copied else ""
    spans += f'<span class="model">{escape(decode(own))}</span>' if own else ""
    return f'<span class="round" title="{escape(about)}">{spans}</span>'
