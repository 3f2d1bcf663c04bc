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
                row["tokens"] / row[key]
                for key in ("transformers_seconds", "transformers_lookup_seconds", "off_seconds", "on_seconds")
            ]
            name = _TITLES[row["kind"]] + (" (prefix)" if row["variant"] == "prefix" else "")
            rows.append(
                [name, *(f"{r:.1f}" for r in rates), f"{rates[2] / rates[0]:.2f}x", f"{rates[3] / rates[1]:.2f}x"]
            )
        out += [f"### {dtype} weights, decode tokens/s", "", table(head, rows), ""]
    return out


def _verify(results: dict[str, Any]) -> list[str]:
    out = ["## What a verify costs", "", "Median time of one forward by rows, one sequence, relative to one row.", ""]
    rows = []
    for dtype in ("float32", "float16"):
        points = {p["rows"]: p["seconds"] for p in results[dtype]["verify"]["points"] if p["batch"] == 1}
        head = ["weights", "1 row, ms", *(f"{r} rows" for r in points if r != 1)]
        rows.append([dtype, f"{points[1] * 1e3:.1f}", *(f"{s / points[1]:.2f}" for r, s in points.items() if r != 1)])
    shares = ", ".join(f"{d}: {results[d]['scheduler_share']:.1%}" for d in ("float32", "float16"))
    return [*out, table(head, rows), "", f"The scheduler's own time, as a share of the forwards': {shares}.", ""]


def _host(results: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{p['history']:,}",
            *(f"{p[key]:.2f}" for key in ("round_us", "rescan_round_us")),
            f"{p['index_ns_per_token']:.0f}",
            f"{p['bytes_per_token']:.1f}",
        ]
        for p in results["host"]["points"]
    ]
    head = ("history, tokens", "propose + observe + settle, us", "plain rescan, us", "index, ns/token", "bytes/token")
    return ["## The drafter's cost on the host", "", "One sequence, through the Python API.", "", table(head, rows), ""]


def _accept(results: dict[str, Any]) -> list[str]:
    rows = [[p["name"], f"{p['seconds'] * 1e3:.2f}", f"{p['ratio']:.2f}x"] for p in results["accept"]["points"]]
    head = ("accept on the host", "ms", "of torch.argmax's time")
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
    ]
    for section in _SECTIONS:
        lines += section(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmarks.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    (out / "benchmarks.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
