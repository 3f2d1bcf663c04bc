"""``make bench``: build what is needed, measure, and rewrite docs/benchmarks.md with what was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

# Before torch is imported: spinning OpenMP threads falsify every figure on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import click
import torch

from benchmarks import speed
from benchmarks.report import write_report
from benchmarks.session import Session

ROOT = Path(__file__).resolve().parent.parent
RECIPES = {"float32": "recipes/smollm2-135m.yaml", "float16": "recipes/smollm2-135m-fp16.yaml"}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import version

    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    names = ("torch", "transformers", "numpy", "trtlookup")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
        **{name: version(name) for name in names},
    }


def engine(dtype: str) -> Path:
    """The engine directory of a recipe, built if it is not there."""
    recipe = ROOT / RECIPES[dtype]
    directory = ROOT / "engines" / recipe.stem
    subprocess.run([sys.executable, "-m", "trtbuild", str(recipe), "-o", str(directory)], check=True)
    return directory


def tool(script: str, *arguments: str) -> Any:
    """What a stand-alone benchmark writes with ``--json``."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.json"
        command = [sys.executable, "-m", f"benchmarks.{script}", "--json", str(out), *arguments]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


@click.command(help=__doc__)
@click.option("--cases", "count", default=3, show_default=True, type=click.IntRange(1, 30), help="prompts per kind")
@click.option("--tokens", default=96, show_default=True, type=click.IntRange(16, 512), help="output tokens per run")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 15), help="runs each, in turn")
@click.option(
    "--out", default=ROOT / "docs", show_default="docs", type=click.Path(path_type=Path), help="where to write"
)
def main(count: int, tokens: int, repeats: int, out: Path) -> None:
    results: dict[str, Any] = {"machine": machine(), "settings": {"cases": count, "tokens": tokens, "repeats": repeats}}
    for dtype in RECIPES:
        directory = engine(dtype)
        with Session(directory) as session:
            baseline = speed.load_baseline(directory)
            rows = speed.measure(
                session,
                variants=tuple(speed.VARIANTS) if dtype == "float32" else ("own", "forced"),
                count=count,
                tokens=tokens,
                repeats=repeats,
                baseline=baseline,
                baseline_lookup=dtype == "float32",
                progress=lambda row: click.echo(f"{row.kind} {row.variant}: {row.ratio:.2f}x", err=True),
            )
            results[dtype] = {
                "rows": [row.as_dict() for row in rows],
                "scheduler_share": speed.scheduler_share(session),
            }
    results["verify"] = tool("verify_cost", *(str(engine(dtype)) for dtype in RECIPES))
    results["host"] = tool("host_cost")
    results["accept"] = tool("accept_host")
    write_report(results, out)
    click.echo(f"Wrote {out / 'benchmarks.md'}", err=True)


if __name__ == "__main__":
    main()
