"""``make demo``: watch copies being verified, then compare decode speed with lookup off and on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from benchmarks.session import Run, Session, median
from benchmarks.workloads import Case, cases
from trtserve.cli.display import COLOURS
from trtserve.engine.protocol import SOURCES, Delta

#: Kind, its title, which case shows it, and whether the answer's first lines are given: a model of 135M parameters can
#: carry a copy on but not begin an edit, so an assistant prefix starts the copy where there is something to copy.
_SHOWN = (
    ("code_edit", "code edit", "cache-0", True),
    ("json_rewrite", "JSON rewrite", "customers-1-0", True),
    ("tool_echo", "tool-call echo", "send_invoice-1", True),
    ("prose", "prose", "prose-2", False),
)


def _case(kind: str, name: str) -> Case:
    return next(case for case in cases(kind) if case.name == name)


def _show(delta: Delta) -> None:
    for text, source in delta.spans:
        click.secho(text, nl=False, fg=COLOURS[source] if source else None)
    sys.stdout.flush()


def _accepted(run: Run) -> str:
    counts = ((source, run.stats.sources.get(source)) for source in SOURCES)
    return ", ".join(f"{source} {s.accepted}/{s.proposed}" for source, s in counts if s and s.proposed) or "-"


@click.command(help=__doc__)
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(8, 1024), help="output tokens per run")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 20), help="runs each, in turn")
def main(engine: Path, tokens: int, repeats: int) -> None:
    with Session(engine) as session:
        manifest = session.manifest
        click.secho(f"\n{manifest.name} on {session.executor.info.device}, greedy\n", bold=True)
        case = _case("code_edit", "cache-0")
        click.echo(case.messages[-1]["content"].split("\n", 1)[0])
        legend = "  ".join(click.style(f"copied from {s}", fg=COLOURS[s]) for s in SOURCES if s == "history")
        click.echo(f"Answer ({legend}  {click.style('given', dim=True)}  the rest is the model's own):\n")
        click.secho(case.prefix, nl=False, dim=True)
        session.run(session.prompt(case, prefix=True), lookup=True, max_tokens=tokens, on_delta=_show)
        click.echo("\n")

        rows = []
        # The runs are silent and take a minute or more.
        progress = click.progressbar(length=2 * repeats * len(_SHOWN), label="Measuring", file=sys.stderr)
        progress.render_progress()
        for kind, title, name, prefix in _SHOWN:
            prompt = session.prompt(_case(kind, name), prefix=prefix)
            off: list[Run] = []
            on: list[Run] = []
            for _ in range(repeats):
                for runs, lookup in ((off, False), (on, True)):
                    runs.append(session.run(prompt, lookup=lookup, max_tokens=tokens))
                    progress.update(1)
            slow = median([r.tokens_per_second for r in off])
            fast = median([r.tokens_per_second for r in on])
            run = on[-1]
            same = "same" if off[-1].tokens == run.tokens else "DIFFERS"
            rows.append(
                (
                    title,
                    f"{slow:.1f}",
                    f"{fast:.1f}",
                    f"{fast / slow:.2f}x",
                    f"{run.stats.rounds}",
                    f"{run.tokens_per_round:.2f}",
                    _accepted(run),
                    same,
                )
            )
        progress.render_finish()
        head = ("decode tokens/s", "off", "on", "ratio", "rounds", "tokens/round", "accepted/drafted", "text")
        widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        for number, row in enumerate([head, *rows]):
            line = "  ".join(
                c.ljust(w) if i in (0, 6, 7) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            click.secho(line.rstrip(), bold=number == 0)
        click.echo(
            f"\n{tokens} tokens at most, median of {repeats} runs each, lookup off and on in turn in one process."
        )
        click.echo("\nServe it:\n  make serve")
        click.echo("Call it:\n  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\")
        body = {"model": manifest.name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
        click.echo(f"    -d '{json.dumps(body)}'")
        click.echo("Or open http://127.0.0.1:8000/ in a browser.")


if __name__ == "__main__":
    main()
