"""``trtserve``: serve an engine directory over HTTP, run one prompt, or talk to it.

Exit codes: 0 success; 1 a generation or the server failed; 2 wrong usage; 3 the engine directory cannot be used; 4 the
device or executor cannot run it; 5 the address cannot be listened on; 130 interrupted.
"""

from __future__ import annotations

import errno
from typing import Any

import click

from trtserve.api.version import version
from trtserve.cli.caching import cache
from trtserve.cli.calibrating import calibrate
from trtserve.cli.chatting import chat
from trtserve.cli.failures import FAILED
from trtserve.cli.generating import generate
from trtserve.cli.replaying import replay_command
from trtserve.cli.serving import serve
from trtserve.cli.streams import prepare_streams


class _DefaultServe(click.Group):
    """A group whose command is ``serve`` where none is named: ``trtserve ENGINE_DIR --port 9000``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        prepare_streams()
        try:
            return super().invoke(ctx)
        except OSError as e:
            # Of files each command speaks for itself; this is standard output on a full disk, say.
            if e.errno == errno.EPIPE:
                raise
            click.echo(f"Error: {e}", err=True)
            raise click.exceptions.Exit(FAILED) from e

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The group's own options and commands, then those of the default command."""
        super().format_options(ctx, formatter)
        rows = [row for option in serve.get_params(ctx) if (row := option.get_help_record(ctx)) is not None]
        with formatter.section("Options of serve"):
            formatter.write_dl(rows)


@click.group(
    cls=_DefaultServe,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 success, 1 failed, 2 wrong usage, 3 unusable engine directory, 4 device cannot run it, "
    "5 address cannot be listened on, 130 interrupted.",
)
@click.version_option(version(), prog_name="trtserve")
def main() -> None:
    """Run an engine directory that trtbuild made.

    Without a command's name, the command is serve:  trtserve ENGINE_DIR [OPTIONS]
    """


main.add_command(serve)
main.add_command(generate)
main.add_command(chat)
main.add_command(cache)
main.add_command(calibrate)
main.add_command(replay_command)
