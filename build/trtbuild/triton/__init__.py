"""``trtbuild triton``: a Triton model repository from an engine directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml

from trtbuild.triton.config import ModelConfig
from trtbuild.triton.instances import gpu_sets
from trtbuild.triton.repository import write_model
from trtserve import engine_dir
from trtserve.overrides import OverrideError, Overrides
from trtserve.triton.placement import PlacementError

#: The name that clients of TensorRT-LLM's Triton model ask for.
DEFAULT_MODEL_NAME = "tensorrt_llm"


@click.command("triton")
@click.argument("engine_dir_path", type=click.Path(path_type=Path), metavar="ENGINE_DIR")
@click.option(
    "-o", "--output", "repository", type=click.Path(path_type=Path), metavar="REPO", required=True,
    help="Model repository to write the model into. Other models in it stay as they are.",
)  # fmt: skip
@click.option(
    "--model-name", default=DEFAULT_MODEL_NAME, show_default=True, metavar="NAME",
    help="The model's name in Triton: letters, digits, and . _ -",
)  # fmt: skip
@click.option(
    "--link/--copy", default=True,
    help="Link to the engine directory, or copy it, for a repository that moves to other machines. Default: link.",
)  # fmt: skip
@click.option(
    "--instances", type=click.IntRange(1, 128), default=1, show_default=True,
    help="Instances on each GPU set, or on the CPU. Each is a process with an engine, slots and cache of its own.",
)  # fmt: skip
@click.option(
    "--gpus", "gpus", multiple=True, metavar="ID[,ID...]",
    help="One GPU set for an instance; may be repeated. Default: none for target torch, which then computes on the "
    "CPU; else as many GPUs as the recipe's tensor_parallel_size, from GPU 0.",
)  # fmt: skip
@click.option(
    "--decoupled/--no-decoupled", default=True,
    help="Decoupled models stream, over gRPC and generate_stream, and answer generate. The others answer plain infer "
    "requests and generate. Default: decoupled.",
)  # fmt: skip
@click.option(
    "--tenant-parameter", default="tenant", show_default=True, metavar="NAME",
    help="The request parameter that names the tenant. A gateway must set it: Triton checks nobody's identity.",
)  # fmt: skip
@click.option(
    "--require-tenant", is_flag=True, help="Refuse requests without a tenant. Default: they share the tenant ''.",
)  # fmt: skip
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE",
    help="A setting that trtserve has as a flag, by the flag's name with underscores, such as threads=4 or "
    "prompt_lookup_shared_cache_mb=64. May be repeated. Default: none.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a model that trtbuild did not write. Default: refuse.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object. Default: text.")
def command(
    engine_dir_path: Path,
    repository: Path,
    model_name: str,
    link: bool,
    instances: int,
    gpus: tuple[str, ...],
    decoupled: bool,
    tenant_parameter: str,
    require_tenant: bool,
    overrides: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Write a Triton model for an engine directory.

    REPO/NAME gets a config.pbtxt and a version 1 with the engine and a model.py, which needs trtlookup in the Python
    environment of Triton's Python backend. The model is replaced whole or not at all.
    """
    manifest = engine_dir.load(engine_dir_path)
    settings = _settings(overrides)
    try:
        sets = gpu_sets(engine_dir_path, manifest, gpus)
        if sets and manifest.target == "torch":
            settings.setdefault("device", "cuda:0")
        Overrides.parse(settings).speculative(manifest)
        config = ModelConfig(
            name=model_name,
            instances=instances,
            gpus=sets,
            decoupled=decoupled,
            tenant_parameter=tenant_parameter,
            require_tenant=require_tenant,
            overrides=settings,
        )
    except (OverrideError, PlacementError, ValueError) as e:
        raise click.UsageError(str(e)) from e
    directory = write_model(engine_dir_path, repository, config, link=link, force=force)
    if as_json:
        report = {
            "status": "written",
            "model": str(directory),
            "name": model_name,
            "engine": str(engine_dir_path),
            "instances": config.count,
            "gpus": [list(s) for s in sets],
            "decoupled": decoupled,
        }
        click.echo(json.dumps(report, indent=1))
    else:
        click.echo(f"{directory}: written; serve it with: tritonserver --model-repository {repository}")


def _settings(overrides: tuple[str, ...]) -> dict[str, Any]:
    settings = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise click.UsageError(f"--set {override}: allowed: NAME=VALUE")
        try:
            settings[name.strip().replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise click.UsageError(f"--set {override}: {value!r} is not a YAML value") from e
    return settings
