"""Figures in hand-written pages, filled in from results: ``python -m benchmarks.pages [--check]``

A page marks where figures go with ``<!-- name:begin -->`` and ``<!-- name:end -->``; what is between the marks is
written from ``docs/benchmarks.json`` and ``benchmarks/results``, never typed. ``docs/benchmarks.md`` is written whole.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report

ROOT = Path(__file__).resolve().parent.parent
REPLAY = "benchmarks/results/replay.json"
REPLAY_HELD_OUT = "benchmarks/results/replay-heldout.json"
TENSORRT_ROWS = "benchmarks/results/tensorrt_rows.json"

Parts = dict[str, dict[str, Any]]


def load(root: Path = ROOT) -> Parts:
    """What has been measured, by part; empty where nothing was. Some have own files."""
    path = root / "docs/benchmarks.json"
    parts: Parts = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.is_file() else {}
    for name, file in (("replay", REPLAY), ("replay_held_out", REPLAY_HELD_OUT), ("tensorrt_rows", TENSORRT_ROWS)):
        if (root / file).is_file():
            parts[name] = {**parts.get(name, {}), "result": json.loads((root / file).read_text(encoding="utf-8"))}
    return parts


def fill(page: str, name: str, content: str) -> str:
    """The page with ``content`` between the marks of ``name``. Raises ValueError where they are missing."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{content.strip()}\n{end}{after}"


class Place(NamedTuple):
    """Marked lines of a page, and what they are written from: the part of that name."""

    page: str
    mark: str
    part: str
    content: Callable[[Any, dict[str, Any]], str]


PLACES = (
    Place("README.md", "measured", "speed-float32", report.readme),
    Place("README.md", "policies", "replay_held_out", report.readme_policies),
    Place("docs/lookup.md", "draft-model", "draft_model", report.draft_model_summary),
    Place("docs/lookup.md", "prediction", "prediction", report.prediction_summary),
    Place("docs/acceptance.md", "accept-host", "accept", report.accept_summary),
    Place("docs/tensorrt.md", "tensorrt-built", "tensorrt_rows", report.tensorrt_built),
    Place("docs/tensorrt.md", "tensorrt-rows", "tensorrt_rows", report.tensorrt_rows),
    Place("docs/scale.md", "load", "load", report.front_ends),
)


def written(parts: Parts, root: Path = ROOT) -> dict[Path, str]:
    """Every page that has figures, as the results say it should be. Places without results stay as they are."""
    pages: dict[Path, str] = {root / "docs/benchmarks.md": report.page(parts)}
    for place in PLACES:
        path = root / place.page
        text = pages.get(path) or path.read_text(encoding="utf-8")
        part = parts.get(place.part, {})
        if "result" in part:
            text = fill(text, place.mark, place.content(part["result"], part.get("machine", {})))
        pages[path] = text
    return pages


def write(parts: Parts, root: Path = ROOT) -> None:
    """Write the pages and their plots."""
    for path, text in written(parts, root).items():
        path.write_text(text, encoding="utf-8")
    report.draw(parts, root / "docs" / "plots")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill the pages' figures in from the results.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a page says something else")
    arguments = parser.parse_args()
    parts = load()
    if not arguments.check:
        write(parts)
        return
    stale = [str(p.relative_to(ROOT)) for p, text in written(parts).items() if p.read_text(encoding="utf-8") != text]
    if stale:
        raise SystemExit(f"not what the results say: {', '.join(stale)}; run python -m benchmarks.pages")


if __name__ == "__main__":
    main()
