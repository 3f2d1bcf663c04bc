"""``trtserve ENGINE_DIR``: the HTTP server."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
from pathlib import Path
from typing import Any

import click

from trtserve import engine_dir as engine_dirs
from trtserve.api.auth import OpenAccess, TokenAuth
from trtserve.api.context import ApiConfig, ServerContext
from trtserve.api.cross_origin import ANY_ORIGIN, check_origin
from trtserve.api.server import ApiServer, allow_many_connections, listen
from trtserve.api.version import version
from trtserve.cli.failures import CommandError, friendly
from trtserve.cli.options import engine_options, integer_range, option, overrides_of
from trtserve.loading import load_engine
from trtserve.overrides import Overrides
from trtserve.replay.recording import TraceRecorder
from trtserve.settings import Speculative

LOG_LEVELS = ("debug", "info", "warning", "error")


def _lookup_line(speculative: Speculative, overrides: Overrides) -> str:
    lookup = speculative.prompt_lookup
    if lookup is None:
        return "off"
    shared = lookup.shared_cache
    cache = "no shared cache"
    if shared.mb and not overrides.hermetic:
        cache = f"shared cache {shared.mb} MiB in {shared.scopes} scopes"
        if overrides.shared_cache_path is not None:
            cache += f", kept in {overrides.shared_cache_path}"
    return f"on: {lookup.summary}, {cache}"


def _recorder(path: Path | None, tenants: tuple[str, ...]) -> TraceRecorder | None:
    if path is None:
        return None
    try:
        return TraceRecorder(path, tenants)
    except OSError as e:
        raise CommandError(f"--record-traces: {e}") from e


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def banner(context: ServerContext, speculative: Speculative, overrides: Overrides, url: str, open_access: bool) -> str:
    """What the server says once, when it is ready."""
    manifest = context.engine.manifest
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64})
    token = "" if open_access else " -H 'Authorization: Bearer TOKEN'"
    exact = ", exact verify" if speculative.exact_verify else ""
    names = ", ".join(context.names)
    return "\n".join(
        (
            f"trtserve {version()}: {names} ({manifest.target}, {manifest.limits.max_batch_size} slots of "
            f"{manifest.limits.max_seq_len} tokens{exact}{', hermetic' if overrides.hermetic else ''})",
            f"  lookup      {_lookup_line(speculative, overrides)}",
            f"  auth        {'off' if open_access else 'bearer tokens'}",
            f"  API         {url}/v1",
            f"  playground  {url}/",
            f"  metrics     {url}/metrics",
            f"  try         curl {url}/v1/chat/completions -H 'Content-Type: application/json'{token} -d '{body}'",
        )
    )


@click.command(short_help="Serve an engine directory over HTTP (the default command).")
@option("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is every interface")
@option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free one")
@option(
    "--served-model-name",
    multiple=True,
    show_default="the engine's name",
    help="a name the model answers to; can be given several times, the first is shown",
)
@option("--require-auth", is_flag=True, default=False, help="ask for a bearer token; its owner is the tenant")
@option(
    "--auth-tokens-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="YAML or JSON, tenant: token; read again when it changes, and on SIGHUP",
)
@option("--metrics-auth/--no-metrics-auth", default=False, help="ask for a token at /metrics too")
@option(
    "--allowed-origins",
    multiple=True,
    metavar="ORIGIN",
    show_default="none",
    help="a web page elsewhere that may call this server from a browser, such as https://app.example.com; can be given "
    "several times; * allows every page",
)
@option(
    "--max-queue",
    type=integer_range(Overrides, "max_queue"),
    default=Overrides.model_fields["max_queue"].default,
    help=Overrides.model_fields["max_queue"].description,
)
@option("--max-body-mb", type=click.IntRange(1, 1024), default=32, help="largest request body, in MiB")
@option(
    "--stall-timeout",
    type=click.FloatRange(0, 86400, min_open=True),
    default=ApiConfig.stall_timeout,
    help="seconds that a client may keep the server waiting for a request's head, for more of its body, or for reading "
    "on in its answer",
)
@option(
    "--timeout-keep-alive",
    type=click.FloatRange(0, 86400),
    default=ApiConfig.keep_alive,
    help="seconds that a connection may be idle between two requests; more than a proxy before it keeps its own",
)
@option(
    "--h11-max-incomplete-event-size",
    type=click.IntRange(1024, 1 << 26),
    default=ApiConfig.max_head_bytes,
    help="bytes of a request's line and headers to wait for before they are refused",
)
@option(
    "--drain-timeout",
    type=click.FloatRange(0, 86400),
    default=30.0,
    help="seconds that running requests get to finish after SIGTERM",
)
@option(
    "--record-traces",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="append token ids of the named tenants' finished requests to this file, for trtserve replay",
)
@option("--record-tenant", multiple=True, help="a tenant who agreed to be recorded; can be given several times")
@option("--log-level", type=click.Choice(LOG_LEVELS), default="info", help="info logs each request, never its text")
@engine_options
def serve(
    engine_dir: Path,
    host: str,
    port: int,
    served_model_name: tuple[str, ...],
    require_auth: bool,
    auth_tokens_file: Path | None,
    metrics_auth: bool,
    allowed_origins: tuple[str, ...],
    max_queue: int,
    max_body_mb: int,
    stall_timeout: float,
    timeout_keep_alive: float,
    h11_max_incomplete_event_size: int,
    drain_timeout: float,
    record_traces: Path | None,
    record_tenant: tuple[str, ...],
    log_level: str,
    **values: Any,
) -> None:
    """Serve the engine in ENGINE_DIR over an OpenAI-compatible HTTP API.

    SIGTERM or Ctrl-C lets running requests finish and exits with 0; a second one quits at once.
    """
    if require_auth and auth_tokens_file is None:
        raise click.UsageError("--require-auth needs --auth-tokens-file")
    if auth_tokens_file is not None and not require_auth:
        raise click.UsageError("--auth-tokens-file does nothing without --require-auth; give both or neither")
    if not all(name and name.isprintable() for name in served_model_name):
        raise click.UsageError("--served-model-name must be printable text; no client could ask for anything else")
    for name, seconds in (
        ("--drain-timeout", drain_timeout),
        ("--stall-timeout", stall_timeout),
        ("--timeout-keep-alive", timeout_keep_alive),
    ):
        if math.isnan(seconds):
            raise click.UsageError(f"{name} is nan; allowed: a number of seconds, up to 86400")
    try:
        for origin in allowed_origins:
            check_origin(origin)
    except ValueError as e:
        raise click.UsageError(f"--allowed-origins: {e}") from e
    if metrics_auth and not require_auth:
        raise click.UsageError("--metrics-auth needs --require-auth")
    if (record_traces is None) != (not record_tenant):
        raise click.UsageError(
            "--record-traces and --record-tenant do nothing without each other; give both or neither"
        )
    if record_traces is not None and record_traces.suffix == ".gz":
        raise click.UsageError("--record-traces appends plain text; give it a name that does not end in .gz")
    if record_tenant and not require_auth and "" not in record_tenant:
        raise click.UsageError(
            f"--record-tenant {record_tenant[0]} records nobody: without --require-auth everyone is the tenant ''"
        )
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with friendly():
        overrides = overrides_of({**values, "max_queue": max_queue})
        auth: TokenAuth | OpenAccess = OpenAccess()
        if auth_tokens_file is not None:
            auth = TokenAuth(auth_tokens_file)
            for tenant in sorted(set(record_tenant) - auth.tenants):
                click.echo(f"Warning: --record-tenant {tenant}: has no token in {auth_tokens_file}", err=True)
        # What can be wrong is found in the order of its cost: the address, the settings, then the model.
        allow_many_connections()
        sock = listen(host, port)
        manifest = engine_dirs.read(engine_dir)
        speculative = overrides.speculative(manifest)
        click.echo(f"Loading {engine_dir} ...", err=True)
        recorder = _recorder(record_traces, record_tenant)
        engine, tokenizer = load_engine(engine_dir, overrides, recorder=recorder)
        try:
            config = ApiConfig(
                served_names=served_model_name,
                max_body_bytes=max_body_mb << 20,
                stall_timeout=stall_timeout,
                keep_alive=timeout_keep_alive,
                max_head_bytes=h11_max_incomplete_event_size,
                max_choices=max_queue + manifest.limits.max_batch_size,
                metrics_need_auth=metrics_auth,
                allowed_origins=allowed_origins,
            )
            context = ServerContext(engine, tokenizer, config, auth)
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{sock.getsockname()[1]}"

            def announce() -> None:
                click.echo(banner(context, speculative, overrides, url, not require_auth), err=True)
                if not require_auth and not _is_loopback(host):
                    click.echo("Warning: anyone who reaches this address may use it; see --require-auth", err=True)
                if not require_auth and ANY_ORIGIN in allowed_origins:
                    click.echo(
                        "Warning: any web page may use this server, in the browser of anyone who reaches it; see "
                        "--require-auth",
                        err=True,
                    )

            ApiServer(context, drain_timeout=drain_timeout, on_ready=announce).run_on(sock)
        finally:
            engine.close()
            if recorder is not None:
                recorder.close()
    click.echo("trtserve: stopped", err=True)
