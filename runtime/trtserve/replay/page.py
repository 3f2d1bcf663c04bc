"""Replays as one HTML page without scripts: which tokens were copied, from where, and what each round cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from trtserve.replay.core import Replay, Result, Round
from trtserve.replay.curves import CostModel
from trtserve.replay.places import Place, Places
from trtserve.replay.report import Summary

#: Rounds shown of one trace, and of all of a page: more are slow to open, and nobody reads them.
MOST_OF_TRACE, MOST_OF_PAGE = 4_000, 40_000

_STYLE = """
:root{color-scheme:light dark;--history:#2e9d5b;--prediction:#3b82d6;--shared:#e07b1a;--oracle:#a457c4;--line:#8886}
body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
.summary td:nth-child(-n+2),.summary th:nth-child(-n+2),.rounds .text{text-align:left}
.rounds{font-size:.85rem}
.rounds .text{font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.8rem;border-radius:.4rem;line-height:1.7}
details{margin:.2rem 0}
details details,details>div{margin-left:1.1rem}
summary{cursor:pointer}
.history,.prediction,.shared,.oracle{border-radius:.2rem;color:inherit;text-decoration:none}
.history{background:color-mix(in srgb,var(--history) 32%,transparent)}
.prediction{background:color-mix(in srgb,var(--prediction) 36%,transparent)}
.shared{background:color-mix(in srgb,var(--shared) 40%,transparent)}
.oracle{background:color-mix(in srgb,var(--oracle) 36%,transparent)}
a.history:hover,a.prediction:hover{outline:2px solid currentColor}
.model{border-bottom:1px dotted #888}
.refused{text-decoration:line-through;opacity:.6}
.round{border-left:2px solid #888a;padding-left:1px}
b:target{background:#ffd43b;color:#000;border-radius:.2rem}
b:target::before{content:"▶"}
b{font-weight:inherit}
svg text{fill:currentColor;font-size:12px}
.with{fill:var(--history)}.without{fill:#8889}.steps{fill:none;stroke:var(--history);stroke-width:1.3}
.plain{stroke:#8889;stroke-dasharray:4 3}
"""

Decode = Callable[[Sequence[int]], str]


def page(runs: Sequence[tuple[Summary, Replay]], model: CostModel, curve: str, decode: Decode) -> str:
    """The page. ``decode`` turns token ids into text; runs kept their rounds."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>Replay</title>",
        f"<style>{_STYLE}</style><h1>Replay</h1>",
        f"<p>Cost of a verify: {escape(curve)}. Speed-up of decoding; the grey part is 1, decoding without drafts.</p>",
        _bars([summary for summary, _ in runs]),
        _table([summary for summary, _ in runs]),
        '<p>Copied from <span class="history">the sequence itself</span>, <span class="prediction">the prediction'
        '</span>, <span class="shared">earlier requests</span>; click a copy to see where it stands. '
        '<span class="model">Dotted</span>: the model\'s own choice, one a round. A line begins each round.</p>',
    ]
    left, number = MOST_OF_PAGE, 0
    for summary, run in runs:
        parts.append(f"<h2>{escape(summary.workload)}, policy {escape(summary.policy)}</h2>")
        for result in run.results:
            shown = min(len(result.kept), MOST_OF_TRACE, left)
            left -= shown
            number += 1
            parts.append(_Trace(result, model, decode, f"t{number}", shown).html())
    return "\n".join(parts) + "</html>\n"


def _table(summaries: Sequence[Summary]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in Summary._fields)
    rows = (
        "<tr>" + "".join(f"<td>{escape(f'{v:.3g}' if isinstance(v, float) else str(v))}</td>" for v in s) + "</tr>"
        for s in summaries
    )
    return f'<div class="wide"><table class="summary"><tr>{head}</tr>{"".join(rows)}</table></div>'


def _bars(summaries: Sequence[Summary]) -> str:
    """Speed-ups as bars."""
    most = max((s.speedup for s in summaries), default=1.0)
    scale = 480 / max(most, 1.0)
    lines = []
    for i, s in enumerate(summaries):
        y = 24 * i
        lines.append(
            f'<text x="0" y="{y + 15}">{escape(f"{s.workload}, {s.policy}")}</text>'
            f'<rect class="with" x="220" y="{y + 3}" width="{s.speedup * scale:.0f}" height="15"/>'
            f'<rect class="without" x="220" y="{y + 3}" width="{scale:.0f}" height="15"/>'
            f'<text x="{225 + s.speedup * scale:.0f}" y="{y + 15}">{s.speedup:.2f}x</text>'
        )
    height = 24 * len(summaries)
    return (
        f'<div class="wide"><svg role="img" aria-label="Speed-up" width="780" height="{height}">{"".join(lines)}</svg>'
        "</div>"
    )


class _Trace:
    """One trace's part of the page. ``name`` begins the ids of its places."""

    def __init__(self, result: Result, model: CostModel, decode: Decode, name: str, shown: int) -> None:
        self._result, self._model, self._decode, self._name = result, model, decode, name
        self._shown = result.kept[:shown]
        places = Places(result)
        self._places = [places.find(part) for part in self._shown]

    def html(self) -> str:
        result, trace = self._result, self._result.trace
        time = sum(self._model.time(1, part.draft.extra_rows) for part in result.kept)
        plain = len(trace.output) * self._model.time(1, 0)
        title = trace.name or f"{len(trace.prompt)} tokens of prompt"
        out = [
            f"<details><summary>{escape(title)}: {len(trace.output)} tokens in {result.rounds} rounds, alone "
            f"{plain / time if time else 1:.2f}x; {result.accepted} of {result.drafted} drafts accepted</summary>",
            self._text("prompt", trace.prompt),
        ]
        if trace.prediction:
            out.append(self._text("prediction", trace.prediction))
        if self._shown:
            out += [f"<div>{self._steps()}</div>", f"<pre>{self._output()}</pre>"]
        if len(self._shown) < len(result.kept):
            out.append(f"<p>{len(result.kept) - len(self._shown):,} later rounds are not shown.</p>")
        if self._shown:
            out.append(self._rounds())
        return "".join(out) + "</details>"

    def _cost(self, part: Round) -> float:
        return self._model.relative(1, part.draft.extra_rows)

    def _id(self, place: Place) -> str:
        return f"{self._name}-{place.text}-{place.token}"

    def _marked(self, text: str, tokens: Sequence[int], start: int, end: int) -> str:
        """``tokens[start:end]`` as text, with a mark where copies begin."""
        marks = sorted({p.token for p in self._places if p and p.text == text and start <= p.token < end})
        edges = [start, *marks, end]
        pieces = []
        for at, until in pairwise(edges):
            body = escape(self._decode(tokens[at:until])) if until > at else ""
            # A mark is as long as its first token: enough to see, and none lies in another.
            if at in marks:
                first = escape(self._decode(tokens[at : at + 1]))
                rest = escape(self._decode(tokens[at + 1 : until])) if until > at + 1 else ""
                body = f'<b id="{self._id(Place(text, at))}">{first}</b>{rest}'
            pieces.append(body)
        return "".join(pieces)

    def _text(self, text: str, tokens: Sequence[int]) -> str:
        body = self._marked(text, tokens, 0, len(tokens))
        return f"<details><summary>{text}, {len(tokens):,} tokens</summary><pre>{body}</pre></details>"

    def _steps(self) -> str:
        """What a token cost along the output: a step without drafts is 1."""
        width, height = 900.0, 70.0
        tokens = self._shown[-1].start + self._shown[-1].emitted
        scale = width / tokens
        most = max(*(self._cost(part) / part.emitted for part in self._shown), 1.0)
        path: list[str] = []
        for part in self._shown:
            y = height - height * self._cost(part) / part.emitted / most
            path.append(
                f"{'L' if path else 'M'}{part.start * scale:.1f} {y:.1f}H{(part.start + part.emitted) * scale:.1f}"
            )
        one = height - height / most
        return (
            f'<svg role="img" aria-label="Steps a token along the output" viewBox="-40 -8 950 102" width="100%">'
            f'<path class="plain" d="M0 {one:.1f}H{width}"/><path class="steps" d="{"".join(path)}"/>'
            f'<text x="-4" y="{one + 4:.1f}" text-anchor="end">1</text>'
            f'<text x="-4" y="{height:.0f}" text-anchor="end">0</text>'
            f'<text x="0" y="{height + 16:.0f}">steps a token, along {tokens:,} tokens of output</text>'
            "</svg>"
        )

    def _output(self) -> str:
        return "".join(self._round(part, place) for part, place in zip(self._shown, self._places, strict=True))

    def _round(self, part: Round, place: Place | None) -> str:
        output, draft = self._result.trace.output, part.draft
        about = f"{part.emitted} tokens for {self._cost(part):.2f} of a step"
        if draft.tokens:
            about += f"; drafted {len(draft.tokens)} from {draft.source}, match {draft.match}: "
            about += repr(self._decode(draft.tokens))
        end = part.start + part.accepted
        spans = ""
        if part.accepted:
            spans = self._copied(part, place, self._marked("output", output, part.start, end))
        spans += f'<span class="model">{self._marked("output", output, end, part.start + part.emitted)}</span>'
        return f'<span class="round" title="{escape(about)}">{spans}</span>'

    def _copied(self, part: Round, place: Place | None, text: str) -> str:
        source = escape(part.draft.source or "history")
        if place is None:
            return f'<span class="{source}">{text}</span>'
        return f'<a class="{source}" href="#{self._id(place)}">{text}</a>'

    def _rounds(self) -> str:
        """A row for every round."""
        rows = []
        output = self._result.trace.output
        for number, (part, place) in enumerate(zip(self._shown, self._places, strict=True), 1):
            draft = part.draft
            where = draft.source or "" if place is None else f"{place.text} {place.token:,}"
            end = part.start + part.accepted
            copied = escape(self._decode(output[part.start : end])) if part.accepted else ""
            text = self._copied(part, place, copied) if copied else ""
            text += f'<span class="model">{escape(self._decode(output[end : part.start + part.emitted]))}</span>'
            if refused := draft.tokens[part.accepted :] if draft.parents is None else ():
                text += f' <span class="refused">{escape(self._decode(refused))}</span>'
            drafted = f"{part.accepted} of {len(draft.tokens)}" if draft.tokens else ""
            cost = self._cost(part)
            rows.append(
                f"<tr><td>{number}<td>{part.emitted}<td>{cost:.2f}<td>{cost / part.emitted:.2f}<td>{drafted}"
                f'<td>{escape(where)}<td class="text">{text}</tr>'
            )
        return (
            f"<details><summary>{len(rows):,} rounds, one by one</summary>"
            '<div class="wide"><table class="rounds"><tr><th>round<th>tokens<th>steps<th>steps a token'
            '<th>drafts accepted<th>copied from, token<th class="text">copied, the model\'s own, refused</tr>'
            f"{''.join(rows)}</table></div></details>"
        )
