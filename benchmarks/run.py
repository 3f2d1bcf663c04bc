"""``make bench``: build what is needed, measure, and rewrite docs/benchmarks.md with what was measured.

Each part runs in a process of its own and is written down as soon as it is done; one that fails is named on the page
and in the exit status, and the others go on.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is imported: spinning OpenMP threads falsify every figure on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import click

from benchmarks import pages

ROOT = pages.ROOT
#: Recipe and overrides of the engines measured.
ENGINES = {
    "float32": ("recipes/smollm2-135m.yaml", ()),
    "float16": ("recipes/smollm2-135m-fp16.yaml", ()),
    "batch": ("recipes/smollm2-135m.yaml", ("limits.max_batch_size=32",)),
}
DIRECTORIES = {"float32": "smollm2-135m", "float16": "smollm2-135m-fp16", "batch": "smollm2-135m-batch-32"}


class Part(NamedTuple):
    """A benchmark that is run as a module with ``--json``: its arguments, those that make it quick, and its engines'
    directories before them. ``seconds``: about how long it takes on two quiet cores."""

    module: str
    engines: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    seconds: int = 10


#: Has files of its own: results in ``pages.REPLAY``, and docs/policy.md. Modelled time, so noise has no part in it.
REPLAY = "replay"
_QUICK_SPEED = ("--cases", "1", "--repeats", "1", "--tokens", "32", "--forced-tokens", "32")
PARTS = {
    "speed-float32": Part("speed", ("float32",), ("--repeats", "2"), _QUICK_SPEED, 270),
    "speed-float16": Part(
        "speed",
        ("float16",),
        ("--repeats", "2", "--variants", "own,forced", "--transformers", "generate"),
        _QUICK_SPEED,
        115,
    ),
    "batches": Part(
        "batches", ("batch",), ("--repeats", "2"), ("--repeats", "1", "--tokens", "16", "--batches", "1,8,32"), 170
    ),
    "verify": Part("verify_cost", ("float32", "float16"), (), ("--repeats", "3"), 10),
    "host": Part("host_cost", (), (), ("--lengths", "1000", "32000"), 30),
    "accept": Part("accept_host", (), (), ("--rounds", "5"), 5),
    "prediction": Part("prediction", ("float32",), (), (), 5),
    "shared_cache": Part("shared_cache", (), (), ("--mb", "1", "16", "--scopes", "1", "16"), 15),
    "draft_model": Part(
        "draft_model",
        ("float32",),
        ("--layers", "6,24", "--kinds", "code_edit,prose", "--cases", "1", "--repeats", "1", "--tokens", "40"),
        ("--layers", "6", "--kinds", "prose", "--tokens", "16", "--traces", "3"),
        80,
    ),
    REPLAY: Part("replay", (), (), ("--policies", "adaptive-shipped", "--curves", "row-0.05", "--no-batches"), 110),
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import version

    import torch

    import trtbuild

    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
        **{name: version(name) for name in ("torch", "transformers", "numpy")},
        "trtlookup": trtbuild.__version__,
    }


def run_module(name: str, *arguments: str, stdout: int | None = None) -> None:
    """Run one of our modules as a process of its own. Raises RuntimeError where it fails."""
    done = subprocess.run([sys.executable, "-m", name, *arguments], cwd=ROOT, stdout=stdout)
    if done.returncode:
        # The page names no paths of the machine that measured.
        raise RuntimeError(f"{name} ended with {done.returncode}")


def engine(name: str) -> Path:
    """The engine directory of that name, built if it is not there. Raises RuntimeError where it cannot be built."""
    recipe, overrides = ENGINES[name]
    directory = ROOT / "engines" / DIRECTORIES[name]
    settings = [argument for override in overrides for argument in ("--set", override)]
    run_module("trtbuild", str(ROOT / recipe), "-o", str(directory), *settings)
    return directory


def replay(part: Part, root: Path, quick: bool) -> None:
    """Replay the policies into ``root``'s results, and write its page; ``quick``: to see that it works, no more."""
    module = f"benchmarks.{part.module}"
    if quick:
        with tempfile.TemporaryDirectory() as scratch:
            run_module(module, *part.quick, "--out", str(Path(scratch) / "out.json"))
        return
    results, held_out, page = root / pages.REPLAY, root / pages.REPLAY_HELD_OUT, root / "docs/policy.md"
    run_module(module, *part.arguments, "--out", str(results))
    written_from = ("--results", str(results), "--held-out", str(held_out))
    run_module("benchmarks.policy_report", *written_from, "--out", str(page))


def measure(part: Part, quick: bool) -> Any:
    """A part's result. Raises RuntimeError where its process fails."""
    directories = [str(engine(name)) for name in part.engines]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.json"
        arguments = [*directories, *part.arguments, *(part.quick if quick else ()), "--json", str(out)]
        run_module(f"benchmarks.{part.module}", *arguments, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))


def run(
    names: Sequence[str],
    root: Path,
    measure_part: Callable[[str], Any],
    about: dict[str, Any],
    say: Callable[[str], None],
) -> list[str]:
    """Measure parts, one after another, into ``docs/benchmarks.json`` and the pages under ``root``. A result that is
    None has a file of its own. Returns the names of those that failed: what was known of them before stays."""
    failed = []
    for name in names:
        say(f"{name} ...")
        begin = time.monotonic()
        try:
            result = measure_part(name)
            found = {"machine": about} if result is None else {"machine": about, "result": result}
        except Exception as e:
            failed.append(name)
            say(f"{name} failed: {e}")
            found = {**_stored(root).get(name, {}), "failed": f"{about['date']}: {type(e).__name__}: {e}"}
        found["seconds"] = round(time.monotonic() - begin, 1)
        # Read anew each time: nothing that is on the page is lost, whatever happens to the parts to come.
        _store(root, {**_stored(root), name: found})
        say(f"{name}: {found['seconds']:.0f} s")
    pages.write(pages.load(root), root)
    return failed


def write_down(name: str, result: Any, root: Path = ROOT) -> None:
    """Put the result of a part that is measured by itself into ``docs/benchmarks.json`` and the pages."""
    _store(root, {**_stored(root), name: {"machine": machine(), "result": result}})
    pages.write(pages.load(root), root)


def _stored(root: Path) -> pages.Parts:
    path = root / "docs/benchmarks.json"
    parts: pages.Parts = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.is_file() else {}
    return parts


def _store(root: Path, parts: pages.Parts) -> None:
    path = root / "docs/benchmarks.json"
    path.write_text(json.dumps({"parts": parts}, indent=1) + "\n", encoding="utf-8")


@click.command(help=__doc__)
@click.option("--only", help=f"only these parts, comma-separated; of {', '.join(PARTS)}")
@click.option("--quick", is_flag=True, help="few runs, in about two minutes: to see that all parts work")
@click.option(
    "--out", "root", type=click.Path(path_type=Path), help="write to a copy of README.md and docs here; default: here"
)
def main(only: str | None, quick: bool, root: Path | None) -> None:
    names = only.split(",") if only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise click.UsageError(f"no part {', '.join(unknown)}; allowed: {', '.join(PARTS)}")
    if quick and root is None:
        raise click.UsageError("--quick figures do not belong on the pages; say --out DIR with it")
    if root is not None:
        _copy_pages(root)
    expected = sum(PARTS[name].seconds for name in names)
    if not quick:
        click.echo(f"About {expected / 60:.0f} minutes on two quiet cores, and the engines' builds.", err=True)
    failed = run(
        names,
        root or ROOT,
        lambda name: replay(PARTS[name], root or ROOT, quick) if name == REPLAY else measure(PARTS[name], quick),
        machine(),
        lambda text: click.echo(text, err=True),
    )
    click.echo(f"Wrote {(root or ROOT) / 'docs/benchmarks.md'}", err=True)
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def _copy_pages(root: Path) -> None:
    """The pages that have figures, and the results that are not measured here."""
    kept = {place.page for place in pages.PLACES} | {pages.REPLAY, pages.REPLAY_HELD_OUT, pages.TENSORRT_ROWS}
    for name in kept:
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    (root / "docs").mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    main()
