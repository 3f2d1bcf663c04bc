"""``trtserve calibrate``: measure what a verify costs, on this machine and now."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trtserve import engine_dir as engine_dirs
from trtserve.cli.failures import friendly
from trtserve.cli.files import ResultPath, write_result
from trtserve.cli.options import integer_range, option
from trtserve.executor.calibrate import DEFAULT_CONTEXTS, DEFAULT_REPEATS, DEFAULT_SECONDS, measure, stopwatch
from trtserve.loading import load_executor
from trtserve.overrides import Overrides


@click.command("calibrate", short_help="Measure what a verify costs on this machine.")
@click.argument("engine_dir", type=click.Path(path_type=Path))
@option("--out", type=ResultPath(), default=None, show_default="printed", help="JSON file")
@option(
    "--context", "contexts", type=click.IntRange(0), multiple=True, default=DEFAULT_CONTEXTS, help="tokens before it"
)
@option("--repeats", type=click.IntRange(1), default=DEFAULT_REPEATS, help="times each shape, in turns")
@option("--seconds", type=click.FloatRange(0, min_open=True), default=DEFAULT_SECONDS, help="about how long to measure")
@option("--device", default=None, show_default="cpu; cuda:0 for TensorRT", help="where to compute")
@option(
    "--threads", type=integer_range(Overrides, "threads"), default=None, show_default="one per core", help="CPU threads"
)
def calibrate(
    engine_dir: Path,
    out: Path | None,
    contexts: tuple[int, ...],
    repeats: int,
    seconds: float,
    device: str | None,
    threads: int | None,
) -> None:
    """Time verifies of the engine in ENGINE_DIR by batch, rows and context.

    The engine directory is not changed. trtserve --cost-curve serves with the result, trtserve replay --curve models
    with it.
    """
    with friendly():
        given = {"device": device, "threads": threads}
        overrides = Overrides.parse({name: value for name, value in given.items() if value is not None})
        executor = load_executor(engine_dir, engine_dirs.load(engine_dir), overrides)
        try:
            with click.progressbar(length=100, label="Measuring", file=sys.stderr) as bar:
                curve = measure(
                    executor,
                    contexts=contexts,
                    repeats=repeats,
                    seconds=seconds,
                    threads=threads,
                    progress=bar.update,
                    timer=stopwatch(executor),
                )
        finally:
            executor.close()
        text = curve.model_dump_json(indent=1) + "\n"
        if out:
            write_result(out, text)
    if not out:
        click.echo(text, nl=False)
