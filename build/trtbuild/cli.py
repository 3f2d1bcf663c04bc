"""The ``trtbuild`` command. ``trtbuild RECIPE`` builds; the other words are commands of their own modules."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from trtbuild import __version__
from trtbuild.errors import BuildError, DoesNotFitError, OutputError, RecipeError
from trtbuild.progress import Progress, TerminalProgress
from trtserve.engine_dir import EngineDirError

if TYPE_CHECKING:
    from trtbuild.builder import Outcome

#: Word to the module that has the command as ``command``. A module that is not installed is not offered.
COMMANDS = {"inspect": "trtbuild.inspection", "schema": "trtbuild.schema", "triton": "trtbuild.triton.command"}

EXIT_CODES = """\b
Exit codes:
  0    built, or nothing to do
  2    wrong usage, or an error in the recipe
  3    the checkpoint cannot be read, or is of a kind that is not supported
  4    the engine does not fit the memory it is given
  5    the build failed
  6    the engine directory or output path cannot be used
  130  interrupted; 143 terminated. Nothing is left behind
"""
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)


def parse_memory(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes with a unit: 8GiB, 512MiB, 16GB, or a plain number of bytes."""
    if value is None:
        return None
    match = _MEMORY.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size; allowed: bytes with a unit, such as 8GiB, 512MiB or 16GB")
    unit = (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    count = int(float(match[1]) * base ** " kmgt".index(unit[:1] or " "))
    if count < 1:
        raise click.BadParameter(f"{value!r} is no memory at all; allowed: 1 byte or more")
    return count


class DefaultCommandGroup(click.Group):
    """A group whose first word may be left out: anything that is no command is an argument of ``build``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "-h", "--version"}
        if args and args[0] not in own and args[0] not in self.list_commands(ctx):
            args = ["build", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = [word for word, module in COMMANDS.items() if importlib.util.find_spec(module)]
        return sorted({*super().list_commands(ctx), *found})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and importlib.util.find_spec(COMMANDS[cmd_name]):
            command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
            return command
        return super().get_command(ctx, cmd_name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Options of trtbuild RECIPE"):
            formatter.write_dl([r for p in build_command.params if (r := p.get_help_record(ctx)) is not None])
        with formatter.section("Options"):
            formatter.write_dl([r for p in self.get_params(ctx) if (r := p.get_help_record(ctx)) is not None])
        self.format_commands(ctx, formatter)


@click.group(
    cls=DefaultCommandGroup,
    epilog=EXIT_CODES,
    subcommand_metavar="RECIPE [OPTIONS]... | COMMAND [ARGS]...",
    options_metavar="",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="trtbuild")
def cli() -> None:
    """Compile a recipe into an engine directory.

    `trtbuild RECIPE` reads the recipe and its checkpoint, plans the engine's tiers and bytes, and writes the engine
    directory that `trtserve` runs. When neither recipe nor checkpoint changed there is nothing to do.
    """


@cli.command("build", epilog=EXIT_CODES, short_help="Build a recipe; the word may be left out.")
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Engine directory to write. Default: engines/NAME, NAME being the recipe's.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a value of the recipe: a dotted key and a YAML value, such as "
    "speculative.prompt_lookup.max_drafts=12. May be repeated. Default: none. Keys and ranges: trtbuild schema.",
)
@click.option("--plan", is_flag=True, help="Print tiers and bytes and build nothing. Default: build.")
@click.option(
    "--check",
    is_flag=True,
    help="Check recipe, checkpoint and what fits, and build nothing. Default: build.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Build even if nothing changed, giving up files of others in the engine directory. Default: off.",
)
@click.option(
    "--measure/--no-measure",
    default=True,
    help="Time verifies on this machine (about 12 seconds) and keep the cost curve in the engine. Default: measure.",
)
@click.option(
    "--memory",
    callback=parse_memory,
    metavar="SIZE",
    help="Memory the engine is given, from 1 byte up: 8GiB, 512MiB, 16GB. Default: what this machine has free.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and no progress. Default: text.")
def build_command(
    recipe: Path,
    output: Path | None,
    overrides: tuple[str, ...],
    plan: bool,
    check: bool,
    force: bool,
    measure: bool,
    memory: int | None,
    as_json: bool,
) -> None:
    """Build the engine directory of RECIPE, a YAML file."""
    from trtbuild import builder, capacity
    from trtbuild.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    name = loaded.recipe.name
    out = output if output is not None else Path("engines") / name
    report: dict[str, Any] = {"name": name, "engine": str(out)}
    if not (plan or check or force) and (manifest := builder.find_current(loaded, out)) is not None:
        outcome = builder.Outcome("up_to_date", manifest, 0.0)
        report["plan"] = builder.plan_capacity(loaded.recipe, manifest.model, memory).model_dump(mode="json")
        _say_outcome(report, outcome, as_json)
        return
    prepared = builder.prepare(loaded, memory)
    choices = prepared.choices
    report["plan"] = prepared.plan.model_dump(mode="json")
    report["choices"] = {name: choice.model_dump(mode="json") for name, choice in choices.items()}
    if plan or check:
        if plan and not as_json:
            click.echo(f"{name} for {prepared.recipe.target}, weights in {prepared.config.dtype}\n")
            click.echo(capacity.format_plan(prepared.plan))
            for name, choice in choices.items():
                asked = "" if choice.asked in (None, choice.chosen) else f" (the recipe asks for {choice.asked})"
                click.echo(f"\n{name}: {choice.chosen}{asked}\n{_wrapped(choice.reason)}")
        prepared.require_fit()
        if as_json:
            click.echo(json.dumps({"status": "planned" if plan else "checked", **report}, indent=1))
        elif not plan:
            needs = capacity.size(prepared.plan.total_bytes)
            click.echo(f"{recipe}: correct; a {prepared.config.architecture} engine of {needs} that fits")
        return
    progress = Progress() if as_json else TerminalProgress()
    _say_outcome(report, builder.build(prepared, out, force=force, measure=measure, progress=progress), as_json)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ")


def _say_outcome(report: dict[str, Any], outcome: Outcome, as_json: bool) -> None:
    out = report["engine"]
    if as_json:
        details = {
            "status": outcome.status,
            "inputs_digest": outcome.manifest.inputs_digest,
            "measured": outcome.manifest.cost_curve is not None,
            "seconds": round(outcome.seconds, 3),
        }
        click.echo(json.dumps({**report, **details}, indent=1))
    elif outcome.status == "up_to_date":
        click.echo(f"{out}: nothing to do; recipe and checkpoint are what it was built from")
    elif outcome.status == "updated":
        click.echo(f"{out}: updated; what the recipe changed decides no build, and the engine's files are as they were")
    else:
        click.echo(f"{out}: built in {outcome.seconds:.1f} s; serve it with: trtserve {out}")


def exit_code(error: BaseException) -> int | None:
    """The documented exit code of an error that is the user's to act on; None for a defect of this program."""
    kinds: list[tuple[type[BaseException], int]] = [
        (RecipeError, 2),
        (DoesNotFitError, 4),
        (BuildError, 5),
        (MemoryError, 5),
        (EngineDirError, 6),
        (OutputError, 6),
    ]
    # Whoever raised it has imported it. Importing it here would load a framework to report a misspelt key.
    if (checkpoint := sys.modules.get("trtbuild.checkpoint")) is not None:
        kinds.append((checkpoint.CheckpointError, 3))
    return next((code for kind, code in kinds if isinstance(error, kind)), None)


def run(args: Sequence[str]) -> int:
    """Run the command line and return its exit code. Prints errors; lets only defects of the program escape."""
    as_json = "--json" in args
    try:
        result = cli.main(args=list(args), prog_name="trtbuild", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as e:
        if as_json:
            _report_json(e.format_message(), e.exit_code, ())
        else:
            e.show()
        return e.exit_code
    except (click.Abort, KeyboardInterrupt):
        message = "interrupted; nothing was left behind"
        if as_json:
            _report_json(message, 130, ())
        else:
            click.echo(message, err=True)
        return 130
    except BrokenPipeError:
        sys.stdout = None  # nobody reads it: do not flush into the broken pipe at exit
        return 1
    except Exception as e:
        code = exit_code(e)
        if code is None:
            raise
        message = str(e) or type(e).__name__
        if as_json:
            _report_json(message, code, e.problems if isinstance(e, RecipeError) else ())
        else:
            click.echo("\n".join(f"error: {line}" for line in message.splitlines()), err=True)
        return code


def _report_json(message: str, code: int, problems: Sequence[Any]) -> None:
    error: dict[str, Any] = {"message": message, "exit_code": code}
    if problems:
        error["problems"] = [p._asdict() for p in problems]
    click.echo(json.dumps({"status": "error", "error": error}, indent=1))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)  # unwinds, so that a build removes what it had begun
    sys.exit(run(sys.argv[1:]))
