"""``trtserve chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from trtserve.cli.display import Screen, summary
from trtserve.cli.failures import CommandError, friendly
from trtserve.cli.generating import sampling
from trtserve.cli.options import engine_options, option, overrides_of, sampling_options
from trtserve.engine.protocol import EngineError
from trtserve.facade import Engine
from trtserve.loading import load_engine

_HELP = "/reset forgets the conversation, /stats shows or hides statistics, /exit leaves; Ctrl-C stops an answer."


class Conversation:
    """The messages so far, and the engine that answers them."""

    def __init__(self, engine: Engine, screen: Screen, system: str | None, values: dict[str, Any]) -> None:
        self._engine = engine
        self._screen = screen
        self._system = system
        self._values = values
        self._messages: list[dict[str, str]] = []
        self.show_stats = True
        self.reset()

    def reset(self) -> None:
        self._messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def answer(self, text: str) -> None:
        """Answer ``text``. What fails is said, and leaves the conversation as it was before."""
        messages = [*self._messages, {"role": "user", "content": text}]
        try:
            tokens = self._engine.tokens(messages)
            generation = self._engine.submit(tokens, params=sampling(self._engine, len(tokens), self._values))
        except EngineError as e:
            click.secho(f"{e} (/reset starts anew)", err=True, fg="red")
            return
        said, finish = self._screen.stream(generation)
        self._screen.write("\n")
        if finish.reason == "error":
            click.secho(finish.error or "the generation failed", err=True, fg="red")
            return
        self._messages = [*messages, {"role": "assistant", "content": said}]
        if self.show_stats:
            click.secho(summary(finish.stats), err=True, dim=True)


def _read() -> str | None:
    """One message; a line that ends in a backslash goes on. None at the end of input. Ctrl-C drops what was typed."""
    lines: list[str] = []
    while True:
        try:
            line = input("... " if lines else ">>> ")
        except EOFError:
            return None
        except KeyboardInterrupt:
            click.echo("\n(/exit leaves)", err=True)
            lines = []
            continue
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        return "\n".join([*lines, line])


@click.command(short_help="Talk to the model in the terminal.")
@engine_options
@option("--system", default=None, help="a system message")
@sampling_options
def chat(engine_dir: Path, system: str | None, color: bool | None, **values: Any) -> None:
    """Talk to the engine in ENGINE_DIR. Copied text is coloured by where it was copied from."""
    # Line editing and history, where Python has them.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    with friendly(), Engine(*load_engine(engine_dir, overrides_of(values))) as engine:
        if not engine.manifest.tokenizer.chat_template:
            raise CommandError(f"{engine.manifest.name} has no chat template; use: trtserve generate --raw")
        screen = Screen(color)
        click.echo(f"{engine.manifest.name}. {_HELP}", err=True)
        if legend := screen.legend():
            click.echo(f"Copied from: {legend}", err=True)
        conversation = Conversation(engine, screen, system, values)
        while (text := _read()) is not None:
            command = text.strip()
            if command in ("/exit", "/quit"):
                break
            if command == "/reset":
                conversation.reset()
            elif command == "/stats":
                conversation.show_stats = not conversation.show_stats
            elif command.startswith("/") and " " not in command and "\n" not in command:
                click.echo(_HELP, err=True)
            elif command:
                conversation.answer(text)
