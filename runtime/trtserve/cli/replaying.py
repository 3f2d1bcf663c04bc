"""``trtserve replay``: recorded outputs through a drafting policy, priced by what a verify costs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trtserve import engine_dir as engine_dirs
from trtserve.cli.failures import CommandError, friendly
from trtserve.cli.files import ResultPath, write_result
from trtserve.cli.options import option
from trtserve.engine_dir import CostCurve, Manifest
from trtserve.lookup.shared import SharedCache
from trtserve.replay.core import Limits, Replay, replay
from trtserve.replay.curves import CostModel, CurveError, load_curve, shipped_curves
from trtserve.replay.page import Decode, page
from trtserve.replay.policies import POLICIES, NativePolicy
from trtserve.replay.report import Summary, as_json, summarize, table
from trtserve.replay.traces import Trace, TraceError, read_traces
from trtserve.settings import MAX_SHARED_CACHE_MB, PromptLookup
from trtserve.tokenizer import Tokenizer


@click.command("replay", short_help="Replay recorded outputs through a drafting policy.")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@option("--engine", type=click.Path(path_type=Path), default=None, help="take settings, curve and tokenizer from it")
@option(
    "--curve",
    default=None,
    show_default="the engine's, else row-0.05",
    help=f"what a verify costs: {', '.join(shipped_curves())}, or a file that calibrate wrote",
)
@option("--policy", type=click.Choice(POLICIES), multiple=True, show_default="all", help="can be given several times")
@option("--max-drafts", type=click.IntRange(1, 64), default=None, show_default="the settings'", help="drafts of a copy")
@option("--batch", type=click.IntRange(1, 256), default=1, help="sequences decoded at once")
@option(
    "--shared-cache-mb",
    type=click.IntRange(0, MAX_SHARED_CACHE_MB),
    default=0,
    help="one scope for all traces; 0 is none",
)
@option("--json", "as_json_", is_flag=True, default=False, help="print JSON")
@option("--html", type=ResultPath(), default=None, help="write a page that shows each copy")
def replay_command(
    traces: tuple[Path, ...],
    engine: Path | None,
    curve: str | None,
    policy: tuple[str, ...],
    max_drafts: int | None,
    batch: int,
    shared_cache_mb: int,
    as_json_: bool,
    html: Path | None,
) -> None:
    """Replay TRACES (.jsonl or .jsonl.gz) and say what decoding them takes under each policy.

    Each output is emitted round by round, as a model that chose exactly these tokens would have. A trace file holds one
    JSON object a line, with "prompt" and "output" as lists of token ids; trtserve --record-traces writes such files.
    """
    with friendly():
        manifest = engine_dirs.read(engine) if engine else None
        name, costs = _curve(curve, manifest)
        model = CostModel(costs)
        grouped = _grouped(traces)
        runs: list[tuple[Summary, Replay]] = []
        for chosen in policy or POLICIES:
            settings = _settings(manifest, chosen, max_drafts, shared_cache_mb)
            limits = Limits(settings.max_drafts, settings.batch_max_drafts, settings.max_seqs)
            for workload, of in grouped.items():
                shared = SharedCache.from_settings(settings)
                one = NativePolicy(settings, cost=costs, shared=shared)
                run = replay(of, one, batch=batch, limits=limits, keep_rounds=html is not None)
                runs.append((summarize(workload, run, model), run))
        runs.sort(key=lambda pair: pair[0].workload)
        summaries = [summary for summary, _ in runs]
        if html:
            write_result(html, page(runs, model, name, _decoder(engine, manifest)))
    click.echo(json.dumps({"curve": name, "results": as_json(summaries)}, indent=1) if as_json_ else table(summaries))


def _curve(name: str | None, manifest: Manifest | None) -> tuple[str, CostCurve | None]:
    if name is None:
        if manifest is None or manifest.cost_curve is None:
            return "every draft row adds 0.05 of a step", None
        return f"{manifest.name} on {manifest.cost_curve.device}, measured when it was built", manifest.cost_curve
    try:
        curve = load_curve(name)
    except (CurveError, OSError) as e:
        raise CommandError(f"--curve: {e}") from e
    return curve.device, curve


def _settings(manifest: Manifest | None, policy: str, max_drafts: int | None, shared_cache_mb: int) -> PromptLookup:
    built = (manifest.speculative.prompt_lookup if manifest else None) or PromptLookup()
    fields = built.model_dump() | {"policy": policy, "shared_cache": {"mb": shared_cache_mb, "scopes": 1}}
    return PromptLookup.model_validate(fields | ({"max_drafts": max_drafts} if max_drafts else {}))


def _grouped(paths: tuple[Path, ...]) -> dict[str, list[Trace]]:
    grouped: dict[str, list[Trace]] = {}
    try:
        for trace in (t for path in paths for t in read_traces(path)):
            grouped.setdefault(trace.workload, []).append(trace)
    except (TraceError, OSError) as e:
        raise CommandError(str(e)) from e
    if not any(t.output for of in grouped.values() for t in of):
        raise CommandError(f"{', '.join(map(str, paths))}: no trace with an output")
    return {workload: of for workload, of in grouped.items() if any(t.output for t in of)}


def _decoder(engine: Path | None, manifest: Manifest | None) -> Decode:
    """Token ids as text, by the engine's tokenizer; without an engine as numbers."""
    if engine is None or manifest is None:
        return lambda ids: "".join(f"{i} " for i in ids)
    tokenizer = Tokenizer.load(engine, manifest.tokenizer)
    return lambda ids: tokenizer.decode(list(ids), skip_special=False)
