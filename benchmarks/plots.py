"""Plots for the documentation: SVG files that are readable on light and dark pages.

A figure's background and ink follow the reader's colour scheme by a style sheet inside the file; series have colours
that stand out from both, and a marker or a place of their own beside the colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What the style sheet turns round on dark pages; nothing else may have these colours.
INK, PAPER = "#1f2329", "#fefefe"
DARK_INK, DARK_PAPER = "#e6e9ee", "#15181d"
COLOURS = ("#0f8a6d", "#d9731a", "#4f83cc", "#b4559b", "#8a8f98", "#c2a200", "#cc3f4b", "#3aa6b9")
MARKERS = "osD^vPXd"

_STYLE = f"""<style>
@media (prefers-color-scheme: dark) {{
[style*="fill: {INK}"] {{ fill: {DARK_INK} !important }}
[style*="stroke: {INK}"] {{ stroke: {DARK_INK} !important }}
[style*="fill: {PAPER}"] {{ fill: {DARK_PAPER} !important }}
}}
</style>
"""


@contextmanager
def figure(path: Path, columns: int = 1, *, width: float = 8.0, height: float = 3.6) -> Iterator[list[Any]]:
    """Axes to draw on, beside each other; the file is written at the end. The same drawing gives the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings = {
        "svg.fonttype": "none", "svg.hashsalt": "trtlookup", "font.size": 10,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.titlecolor": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.facecolor": PAPER,
        "legend.edgecolor": "none", "legend.framealpha": 0.85, "axes.spines.top": False, "axes.spines.right": False,
        "grid.color": "#8a8f98", "grid.alpha": 0.3, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        drawn, axes = pyplot.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
        try:
            yield list(axes[0])
            buffer = io.StringIO()
            drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_themed(buffer.getvalue()), encoding="utf-8")


def _themed(svg: str) -> str:
    start = svg.index("<defs>")
    svg = svg[:start] + _STYLE + svg[start:]
    # The reader's font, not that of the machine that drew.
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    return re.sub(r"[ \t]+\n", "\n", svg)


def bars(
    axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[float | None]], *, y: str, digits: int = 1
) -> None:
    """Bars side by side in groups, each with its figure over it; None leaves a bar out."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [g + (i - (len(series) - 1) / 2) * width for g, v in enumerate(values) if v is not None]
        known = [v for v in values if v is not None]
        drawn = axes.bar(places, known, 0.92 * width, color=COLOURS[i % len(COLOURS)], label=name)
        axes.bar_label(drawn, [f"{v:.{digits}f}" for v in known], fontsize=7, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)
    axes.margins(y=0.12)


def lines(
    axes: Any,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    log: str = "",
    ticks: bool = False,
) -> None:
    """A line with markers for each series of points. ``log``: axes with a logarithmic scale; ``ticks``: at each x."""
    for i, (name, points) in enumerate(series.items()):
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        axes.plot(xs, ys, marker=MARKERS[i % len(MARKERS)], color=COLOURS[i % len(COLOURS)], label=name, markersize=5)
    if "x" in log:
        axes.set_xscale("log", base=2 if ticks else 10)
    if "y" in log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    else:
        axes.set_ylim(0, 1.12 * max(p[1] for points in series.values() for p in points))
    if ticks:
        every = sorted({p[0] for points in series.values() for p in points})
        axes.set_xticks(every, [_short(v) for v in every])
        axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)


def _short(value: float) -> str:
    """A count as a tick: 32k, 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
