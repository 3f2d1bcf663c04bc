"""``trtbuild inspect``: what an engine directory holds, after checking that it is what was built."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trtbuild.capacity import size, table
from trtbuild.inputs import INPUTS_NAME, Inputs, read_inputs
from trtserve import engine_dir as engine_dirs
from trtserve.engine_dir import CostCurve, Manifest


@click.command("inspect")
@click.argument("engine_dir", type=click.Path(path_type=Path), metavar="ENGINE_DIR")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON. Default: a summary.")
def command(engine_dir: Path, as_json: bool) -> None:
    """Check every file of an engine directory and say what it holds.

    Exit code 6 when the directory is not an engine, or not as it was built.
    """
    manifest = engine_dirs.load(engine_dir)
    if as_json:
        report = {"engine": str(engine_dir), "verified": True, **manifest.model_dump(mode="json")}
        click.echo(json.dumps(report, indent=1))
    else:
        click.echo(summary(engine_dir, manifest, read_inputs(engine_dir)))


def summary(directory: Path, manifest: Manifest, inputs: Inputs | None) -> str:
    """The manifest for people: one fact a line, then the tiers, the files and the cost curve as tables."""
    model, limits, speculative = manifest.model, manifest.limits, manifest.speculative
    facts = [
        ("engine", f"{directory}"),
        ("name", manifest.name),
        ("target", manifest.target),
        (
            "model",
            f"{model.architecture}, {model.num_layers} layers, {model.hidden_size} wide, {model.num_heads} heads "
            f"({model.num_kv_heads} for keys and values), vocabulary {model.vocab_size}",
        ),
        ("weights", f"{model.dtype}, {manifest.weights_digest[:16]}"),
        ("tokenizer", f"{manifest.tokenizer.vocab_size} tokens, {manifest.tokenizer_digest[:16]}"),
        ("chat template", "yes" if manifest.tokenizer.chat_template else "no"),
        (
            "limits",
            f"{limits.max_batch_size} sequences of {limits.max_seq_len} tokens, "
            f"prompts {limits.prefill_chunk} tokens at a time",
        ),
        ("drafter", speculative.drafter + (f", {speculative.num_drafts} drafts" if speculative.num_drafts else "")),
        *_draft_model(manifest),
        ("exact verify", "yes" if speculative.exact_verify else "no"),
        ("prompt lookup", _lookup(manifest)),
        ("built with", ", ".join(f"{tool} {version}" for tool, version in manifest.built_with.items())),
        ("inputs", manifest.inputs_digest[:16] + (_files_read(inputs) if inputs else "")),
    ]
    width = max(len(name) for name, _ in facts)
    blocks = ["\n".join(f"{name:<{width}}  {value}" for name, value in facts)]
    tiers: list[tuple[str, ...]] = [("tier", "batch", "rows")]
    tiers += [(t.name, str(t.batch), str(t.rows)) for t in manifest.tiers]
    blocks.append(table(tiers))
    files: list[tuple[str, ...]] = [("file (verified)", "size", "sha256")]
    files += [(name, size(record.bytes), record.sha256[:16]) for name, record in manifest.files.items()]
    blocks.append(table(files))
    blocks.append(_cost_table(manifest.cost_curve) if manifest.cost_curve else "verify cost: not measured")
    return "\n\n".join(blocks)


def _draft_model(manifest: Manifest) -> list[tuple[str, str]]:
    if (draft := manifest.draft_model) is None:
        return []
    model = draft.model
    shape = f"{model.architecture}, {model.num_layers} layers, {model.hidden_size} wide"
    return [("draft model", f"{shape}, {model.dtype}, {draft.weights_digest[:16]}")]


def _lookup(manifest: Manifest) -> str:
    lookup = manifest.speculative.prompt_lookup
    if lookup is None:
        return "off"
    cache = lookup.shared_cache
    shared = f"shared cache {cache.mb} MiB over {cache.scopes} scopes" if cache.mb else "no shared cache"
    return f"{lookup.summary}, {shared}"


def _files_read(inputs: Inputs) -> str:
    return f", from {', '.join(f.name for f in inputs.files)} (see {INPUTS_NAME})"


def _cost_table(curve: CostCurve) -> str:
    """One line per row count, one column per batch and context, milliseconds."""
    columns = sorted({(p.context, p.batch) for p in curve.points})
    times = {(p.rows, p.context, p.batch): p.seconds for p in curve.points}
    rows: list[tuple[str, ...]] = [("rows", *(f"batch {b}, context {c}" for c, b in columns))]
    for n in sorted({p.rows for p in curve.points}):
        cells = [f"{1e3 * times[n, c, b]:.2f}" if (n, c, b) in times else "-" for c, b in columns]
        rows.append((str(n), *cells))
    threads = f", {curve.threads} threads" if curve.threads else ""
    return f"verify cost in milliseconds ({curve.device}{threads})\n{table(rows)}"
