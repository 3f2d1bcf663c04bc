"""``trtserve generate``: one prompt, from the shell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from trtserve import engine_dir as engine_dirs
from trtserve.cli.display import Screen, summary
from trtserve.cli.failures import INTERRUPTED, CommandError, friendly
from trtserve.cli.files import read_text
from trtserve.cli.options import engine_options, option, overrides_of, sampling_options
from trtserve.facade import Engine, sampling_params
from trtserve.loading import load_engine
from trtserve.sampling import SamplingParams


def sampling(engine: Engine, prompt_len: int, values: Mapping[str, Any]) -> SamplingParams:
    """The sampling that a command's options ask for, its output cut to the context's room. Raises RequestError."""
    room = max(engine.manifest.limits.max_seq_len - prompt_len, 1)
    return sampling_params({**values, "max_tokens": min(values["max_tokens"], room)})


@click.command(short_help="Run one prompt and stream the answer.")
@engine_options
@click.argument("prompt")
@option("--chat/--raw", "chat", default=None, show_default="chat, where the model has a template", help="how to prompt")
@option("--system", default=None, help="a system message, with --chat")
@option(
    "--prediction",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    default=None,
    help="a file with the expected output",
)
@option("--stats/--no-stats", default=False, help="print statistics to standard error at the end")
@sampling_options
def generate(
    engine_dir: Path,
    prompt: str,
    chat: bool | None,
    system: str | None,
    prediction: Path | None,
    stats: bool,
    color: bool | None,
    **values: Any,
) -> None:
    """Run PROMPT ("-" reads standard input) on the engine in ENGINE_DIR and stream the answer to standard output.

    Copied text is coloured by where it was copied from.
    """
    if system is not None and chat is False:
        raise click.UsageError("--system needs --chat: a raw prompt has no messages")
    with friendly():
        text = read_text(Path("-")) if prompt == "-" else prompt
        wanted = read_text(prediction) if prediction else ""
        overrides = overrides_of(values)
        if prediction and overrides.speculative(engine_dirs.read(engine_dir)).prompt_lookup is None:
            raise click.UsageError("--prediction does nothing without prompt lookup, which is off")
    with friendly(), Engine(*load_engine(engine_dir, overrides)) as engine:
        if chat is None:
            chat = engine.manifest.tokenizer.chat_template
        messages = [{"role": "system", "content": system}] if system is not None else []
        tokens = engine.tokens([*messages, {"role": "user", "content": text}] if chat else text)
        expected = engine.prediction_tokens(wanted)
        params = sampling(engine, len(tokens), values)
        screen = Screen(color)
        _, finish = screen.stream(engine.submit(tokens, params=params, prediction=expected))
        screen.write("\n")
        if finish.reason == "error":
            raise CommandError(finish.error or "the generation failed")
        if stats:
            click.echo(summary(finish.stats), err=True)
        if finish.reason == "cancelled":
            raise click.exceptions.Exit(INTERRUPTED)
