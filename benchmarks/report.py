"""docs/benchmarks.md from measured results: every figure in it comes from the run, none is typed in."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed import VARIANTS

_TITLES = {"code_edit": "code edit", "json_rewrite": "JSON rewrite", "tool_echo": "tool-call echo", "prose": "prose"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the rest are figures."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _speed_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            _TITLES[row["kind"]],
            f"{row['tokens'] / row['off_seconds']:.1f}",
            f"{row['tokens'] / row['on_seconds']:.1f}",
            f"**{row['ratio']:.2f}x**",
            f"{row['tokens_per_round']:.2f}",
            f"{row['accepted']} of {row['drafted']}",
            f"{row['differing']} of {row['cases']}",
        ]
        for row in rows
    ]


def _speed(results: dict[str, Any]) -> list[str]:
    head = ("", "tokens/s off", "tokens/s on", "ratio", "tokens per round", "drafts accepted", "texts that differ")
    out = ["## Decode speed, lookup on against off", ""]
    for dtype in ("float32", "float16"):
        for variant, meaning in VARIANTS.items():
            rows = [r for r in results[dtype]["rows"] if r["variant"] == variant]
            if rows:
                out += [f"### {dtype} weights: {meaning}", "", table(head, _speed_rows(rows)), ""]
    return out


def _against_transformers(results: dict[str, Any]) -> list[str]:
    out = ["## Against transformers", "", "Its model is float32, with the same weights, threads and prompts.", ""]
    head = ("", "generate", "prompt lookup", "trtlookup off", "trtlookup on", "off / generate", "on / prompt lookup")
    for dtype in ("float32", "float16"):
        rows = []
        for row in results[dtype]["rows"]:
            if not row["transformers_seconds"]:
                continue
            rates = [
                row["tokens"] / row[key] if row[key] else None
                for key in ("transformers_seconds", "transformers_lookup_seconds", "off_seconds", "on_seconds")
            ]
            name = _TITLES[row["kind"]] + (" (prefix)" if row["variant"] == "prefix" else "")
            plain, looked_up, off, on = rates
            rows.append(
                [
                    name,
                    *("" if rate is None else f"{rate:.1f}" for rate in rates),
                    f"{off / plain:.2f}x" if off and plain else "",
                    f"{on / looked_up:.2f}x" if on and looked_up else "",
                ]
            )
        out += [f"### {dtype} weights, decode tokens/s", "", table(head, rows), ""]
    return out


def _verify(results: dict[str, Any]) -> list[str]:
    out = [
        "## What a verify costs",
        "",
        "Median time of one forward by rows, one sequence; in brackets to one row.",
        "",
    ]
    rows = [
        [name, *(f"{seconds * 1e3:.1f} ms ({seconds / by_rows['1']:.2f})" for seconds in by_rows.values())]
        for name, by_rows in results["verify"].items()
    ]
    counts = next(iter(results["verify"].values()))
    shares = ", ".join(f"{results[d]['scheduler_share']:.1%} ({d})" for d in ("float32", "float16"))
    head = ("engine", *(f"{count} rows" if count != "1" else "1 row" for count in counts))
    return [*out, table(head, rows), "", f"The scheduler's own time is {shares} of the forwards'.", ""]


def _host(results: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{p['tokens']:,}",
            f"{p['round_us']:.2f}",
            f"{p['batch_round_us_per_sequence']:.2f}",
            f"{p['rescan_us']:,.0f}",
            f"{p['index_ms']:.2f}",
            f"{p['bytes_per_token']:.1f}",
        ]
        for p in results["host"]
    ]
    head = ("history, tokens", "round, us", "of a batch of 8, us", "plain rescan, us", "index, ms", "bytes/token")
    return [
        "## The drafter's cost on the host",
        "",
        "A round is propose, observe and settle of one sequence, called from Python; the index is built once, of a "
        "prompt of that length.",
        "",
        table(head, rows),
        "",
    ]


def _accept(results: dict[str, Any]) -> list[str]:
    rows = [[p["logits"], f"{p['seconds'] * 1e3:.2f}", f"{p['ratio']:.2f}x"] for p in results["accept"]]
    head = ("logits, 8 x 9 x 49,152", "accept, ms", "of torch.argmax's time")
    return ["## Acceptance on the host", "", table(head, rows), ""]


_SECTIONS: tuple[Callable[[dict[str, Any]], list[str]], ...] = (_speed, _against_transformers, _verify, _host, _accept)


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write benchmarks.md and benchmarks.json into ``out``."""
    m, s = results["machine"], results["settings"]
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; do not edit. Ratios come from one process in which the alternatives take turns.",
        "",
        f"Measured {m['date']} on {m['cpu']} ({m['cores']} cores, {m['threads']} threads), Python {m['python']}, torch "
        f"{m['torch']}, transformers {m['transformers']}, trtlookup {m['trtlookup']}. The model is "
        f"SmolLM2-135M-Instruct; {s['cases']} prompts a kind, at most {s['tokens']} output tokens, median of "
        f"{s['repeats']} runs each, greedy.",
        "",
        "A model this small often repeats itself, above all in its own JSON, and lookup makes repetition fast: its own "
        "output flatters every prompt lookup, this one and transformers'. The forced columns say what right answers "
        "give.",
        "",
    ]
    for section in _SECTIONS:
        lines += section(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmarks.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    (out / "benchmarks.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    readme = out.parent / "README.md"
    if readme.is_file():
        _write_readme(readme, results)


def _write_readme(path: Path, results: dict[str, Any]) -> None:
    """The README's short table, between its two marks."""
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        return
    by_kind: dict[str, dict[str, str]] = {}
    for row in results["float32"]["rows"]:
        by_kind.setdefault(row["kind"], {})[row["variant"]] = f"{row['ratio']:.2f}x"
    rows = [[_TITLES[kind], *(ratios.get(v, "") for v in VARIANTS)] for kind, ratios in by_kind.items()]
    head = ("decode tokens/s, lookup on over off", "model's own output", "after a given start", "right answer forced")
    m = results["machine"]
    text = (
        f"{table(head, rows)}\n\nSmolLM2-135M, float32, {m['threads']} threads of an {m['cpu']}, one sequence, greedy; "
        "written by `make bench`. A model this small often repeats itself, which flatters the first two columns. More "
        "figures, and transformers beside them: "
        "[docs/benchmarks.md](docs/benchmarks.md)."
    )
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
