"""Failures as one line and an exit code. A traceback is for bugs, not for users."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from trtserve.api.auth import AuthConfigError
from trtserve.api.server import ListenError
from trtserve.chat_template import ChatTemplateError
from trtserve.engine.protocol import EngineError
from trtserve.engine_dir import EngineDirError
from trtserve.executor.base import ExecutorError
from trtserve.lookup.scope_names import SnapshotError
from trtserve.overrides import OverrideError

FAILED = 1
USAGE = 2
ENGINE_DIR = 3
DEVICE = 4
LISTEN = 5
INTERRUPTED = 130


class CommandError(Exception):
    """A command failed, for a reason its message gives to the user."""


_CODES: tuple[tuple[type[Exception], int], ...] = (
    (EngineDirError, ENGINE_DIR),
    (ExecutorError, DEVICE),
    (ListenError, LISTEN),
    (AuthConfigError, USAGE),
    (OverrideError, USAGE),
    (ChatTemplateError, FAILED),
    (CommandError, FAILED),
    (SnapshotError, FAILED),
    (EngineError, FAILED),
)


@contextlib.contextmanager
def friendly() -> Iterator[None]:
    """Turn what can go wrong for a user into ``Error: ...`` and its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except tuple(kind for kind, _ in _CODES) as e:
        code = next(code for kind, code in _CODES if isinstance(e, kind))
        click.echo(f"Error: {e}", err=True)
        raise click.exceptions.Exit(code) from e
