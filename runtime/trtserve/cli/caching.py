"""``trtserve cache``: look at, clear and fill the file that keeps the shared cache across restarts."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from trtserve import engine_dir as engine_dirs
from trtserve.cli.failures import CommandError, friendly
from trtserve.cli.options import option
from trtserve.engine.protocol import Scope
from trtserve.lookup import snapshot
from trtserve.lookup.persistence import usable
from trtserve.lookup.scope_names import KeyFile, ScopeNames, SnapshotError
from trtserve.lookup.shared import SavedScope, SharedCache, mb_for
from trtserve.lookup.snapshot import Snapshot
from trtserve.settings import MAX_KEY_LENGTH, MAX_SHARED_CACHE_MB, PromptLookup
from trtserve.settings import SharedCache as SharedCacheSettings
from trtserve.tokenizer import ChatTemplateError, Tokenizer

_DIGITS = 12
"""Hex digits of each half of a scope's name that ``list`` shows."""


@click.group(short_help="List, clear or fill a shared cache's file.")
def cache() -> None:
    """What trtserve --shared-cache-path FILE keeps. Of scopes only hashes are known, under the key in FILE.key."""


def _open(path: Path, key: KeyFile) -> Snapshot:
    try:
        return Snapshot(path, key.key)
    except FileNotFoundError:
        raise CommandError(f"{path}: no such file") from None
    except SnapshotError as e:
        raise CommandError(f"{path} {e}") from e


@cache.command("list")
@click.argument("file", type=click.Path(path_type=Path))
@option("--json", "as_json", is_flag=True, default=False, help="print JSON")
def list_scopes(file: Path, as_json: bool) -> None:
    """The scopes in FILE, most recently used first.

    A scope's name is its tenant's hash and its own: equal first halves are scopes of one tenant.
    """
    with friendly():
        path = usable(file)
        if not path.exists():
            raise CommandError(f"{path}: no such file")
        with KeyFile(path, create=False, lock=False) as key, _open(path, key) as saved:
            header, records = saved.header, saved.records
    if as_json:
        scopes = [
            {
                "scope": r.name,
                "documents": r.documents,
                "tokens": r.tokens,
                "bytes": r.bytes,
                "stored_at": r.stored_at or None,
            }
            for r in records
        ]
        click.echo(json.dumps({**header._asdict(), "scopes": scopes}, indent=1))
        return
    now = time.time()
    click.echo(
        f"{path}: {header.bytes} bytes, saved {_age(now - header.saved_at)} ago, model {header.model_key[:_DIGITS]}, "
        f"keys of {header.key_length} tokens"
    )
    click.echo(f"{'scope':<{2 * _DIGITS + 1}}  {'documents':>9}  {'tokens':>10}  {'bytes':>11}  {'last stored':>11}")
    for r in records:
        half = len(r.name) // 2
        name = f"{r.name[:_DIGITS]}-{r.name[half : half + _DIGITS]}"
        age = f"{_age(now - r.stored_at)} ago" if r.stored_at else "never"
        click.echo(f"{name}  {r.documents:>9}  {r.tokens:>10}  {r.bytes:>11}  {age:>11}")


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@cache.command()
@click.argument("file", type=click.Path(path_type=Path))
@option("--tenant", default=None, help='whose scopes; "" is the one tenant of a server without auth')
@option("--adapter", default=None, help="only the scope of this adapter (and salt)")
@option("--salt", default=None, help="only the scope of this cache_salt (and adapter)")
@option("--all", "everything", is_flag=True, default=False, help="every scope")
def clear(file: Path, tenant: str | None, adapter: str | None, salt: str | None, everything: bool) -> None:
    """Remove a tenant's text from FILE: all its scopes, or that of an adapter and salt. The server must be stopped."""
    if everything == (tenant is not None):
        raise click.UsageError("give --tenant or --all")
    if everything and (adapter is not None or salt is not None):
        raise click.UsageError("--adapter and --salt narrow --tenant; --all takes neither")
    with friendly():
        path = usable(file)
        if not path.exists():
            raise CommandError(f"{path}: no such file")
        with KeyFile(path, create=False) as key, _open(path, key) as saved:
            prefix = ""
            if tenant is not None:
                names = ScopeNames(key.key, saved.header.model_key)
                narrow = adapter is not None or salt is not None
                prefix = names(Scope(tenant, adapter or "", salt or "")) if narrow else names.tenant(tenant)
            gone = [r for r in saved.records if r.name.startswith(prefix)]
            if gone:
                kept = (saved.text(r) for r in saved.records if r not in gone)
                _write(path, key, saved.header.model_key, saved.header.key_length, kept)
        click.echo(f"{len(gone)} scopes with {sum(r.tokens for r in gone)} tokens removed from {path}")


def _write(path: Path, key: KeyFile, model_key: str, key_length: int, scopes: Iterable[SavedScope]) -> None:
    try:
        snapshot.write(path, key.key, model_key, key_length, scopes)
    except OSError as e:
        raise CommandError(f"{path}: cannot be written: {e.strerror or e}") from e


@cache.command()
@click.argument("engine_dir", type=click.Path(path_type=Path))
@click.argument("texts", type=click.Path(path_type=Path, dir_okay=False))
@option("--path", "file", type=click.Path(path_type=Path), required=True, help="the file to make or to add to")
@option("--tenant", default="", show_default="the one tenant of a server without auth", help="whose scope")
@option("--adapter", default="", show_default="none", help="the scope's adapter")
@option("--salt", default="", show_default="none", help="the scope's cache_salt")
@option(
    "--mb",
    type=click.IntRange(1, MAX_SHARED_CACHE_MB),
    default=None,
    show_default="the scope's share of the engine's; else 16",
    help="MiB that the scope's text may take; beyond it the oldest is dropped",
)
@option(
    "--key-length",
    type=click.IntRange(1, MAX_KEY_LENGTH),
    default=None,
    show_default="the engine's",
    help="tokens of the cache's keys, for a new file; best what the server runs with",
)
def warm(
    engine_dir: Path,
    texts: Path,
    file: Path,
    tenant: str,
    adapter: str,
    salt: str,
    mb: int | None,
    key_length: int | None,
) -> None:
    """Add the texts in the file TEXTS to a scope, as if requests had ended with them. The server must be stopped.

    TEXTS has one text a line. If its name ends in .jsonl, a line is a JSON string, or an object with "text" or
    "messages" (a conversation, which goes through the model's chat template).
    """
    with friendly():
        manifest = engine_dirs.read(engine_dir)
        tokenizer = Tokenizer.load(engine_dir, manifest.tokenizer)
        lookup = manifest.speculative.prompt_lookup or PromptLookup()
        path = usable(file)
        with contextlib.ExitStack() as opened:
            key = opened.enter_context(KeyFile(path, create=not path.exists()))
            name = ScopeNames(key.key, manifest.model_key)(Scope(tenant, adapter, salt))
            key_length = key_length or lookup.shared_key_length
            others: Iterable[SavedScope] = ()
            before: SavedScope | None = None
            if path.exists():
                saved = opened.enter_context(_open(path, key))
                if saved.header.model_key != manifest.model_key:
                    raise CommandError(f"{path} is of another model or tokenizer than {engine_dir}")
                key_length = saved.header.key_length
                before = next((saved.text(r) for r in saved.records if r.name == name), None)
                others = map(saved.text, [r for r in saved.records if r.name != name])
            scope = SharedCache(mb or _share_mb(lookup.shared_cache, before), 1, key_length)
            if before is not None:
                scope.restore(before, key_length)
            count = tokens = 0
            for document in _documents(texts, tokenizer):
                scope.insert(name, document)
                count, tokens = count + 1, tokens + len(document)
            filled = scope.save(name)
            if filled is None:
                raise CommandError(f"{texts}: no text of more than {key_length} tokens")
            _write(path, key, manifest.model_key, key_length, itertools.chain((filled,), others))
    click.echo(
        f"{count} texts of {tokens} tokens, {scope.stats().tokens} of them new, in scope {name[:_DIGITS]}-"
        f"{name[32 : 32 + _DIGITS]} of {path}: {len(filled.tokens)} tokens"
    )


def _share_mb(settings: SharedCacheSettings, before: SavedScope | None) -> int:
    """MiB for one scope: the engine's share, and room for all that the scope has already."""
    share = max(settings.mb // settings.scopes, 1) if settings.mb else 16
    return share if before is None else max(share, mb_for(len(before.tokens)))


def _documents(path: Path, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The texts of a file as tokens. Raises CommandError with the line that cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    if path.suffix == ".jsonl":
                        yield _tokens(json.loads(line), tokenizer)
                    else:
                        yield tokenizer.encode(line.rstrip("\r\n"), allow_special=False).tolist()
                except RecursionError:
                    raise CommandError(f"{path}, line {number}: is nested too deeply") from None
                except (ValueError, ChatTemplateError) as e:
                    raise CommandError(f"{path}, line {number}: {e}") from e
    except OSError as e:
        raise CommandError(f"{path}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise CommandError(f"{path}: is not UTF-8: {e}") from e


def _tokens(value: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, str):
        value = {"text": value}
    match value:
        case {"text": str(text)}:
            tokens = tokenizer.encode(text, allow_special=False)
        case {"messages": list(messages)}:
            tokens = tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=False))
        case _:
            raise ValueError('is neither a string nor an object with "text" or "messages"')
    ids: list[int] = tokens.tolist()
    return ids
