"""The command ``trtbuild triton``: what the recipe says of the deployment, then what the flags say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml

from trtbuild.triton import deployment
from trtbuild.triton.config import ModelConfig
from trtbuild.triton.deployment import Deployment, Kind
from trtbuild.triton.instances import gpu_sets
from trtbuild.triton.repository import write_model
from trtserve import engine_dir
from trtserve.overrides import OverrideError, Overrides
from trtserve.triton.placement import PlacementError


def _default(name: str) -> str:
    """What a flag's help says of its default."""
    value = Deployment.model_fields[name].default
    return f"Default: the recipe's triton.{name}, else {str(value).lower() if isinstance(value, bool) else value}."


@click.command("triton")
@click.argument("engine_dir_path", type=click.Path(path_type=Path), metavar="ENGINE_DIR")
@click.option(
    "-o", "--output", "repository", type=click.Path(path_type=Path), metavar="REPO", required=True,
    help="Model repository to write the model into. Other models in it stay as they are.",
)  # fmt: skip
@click.option(
    "--model-name", metavar="NAME",
    help=f"The model's name in Triton: letters, digits and . _ - (a letter or digit first). {_default('model_name')}",
)  # fmt: skip
@click.option(
    "--model-version", "version", type=click.IntRange(1, deployment.MAX_VERSION),
    help=f"The model's version, the only one it has. {_default('version')}",
)  # fmt: skip
@click.option(
    "--link/--copy", default=True,
    help="Link to the engine directory, or copy it, for a repository that moves to other machines. Default: link.",
)  # fmt: skip
@click.option(
    "--instances", type=click.IntRange(1, deployment.MAX_INSTANCES),
    help="Instances on each GPU set, or on the CPU. Each is a process with an engine, slots and cache of its own. "
    f"{_default('instances')}",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(["auto", "cpu", "gpu"]),
    help=f"Where instances compute. auto: on GPUs, but target torch without --gpus on the CPU. {_default('kind')}",
)  # fmt: skip
@click.option(
    "--gpus", "gpus", multiple=True, metavar="ID[,ID...]",
    help="One GPU set for an instance; may be repeated. Default: the recipe's triton.gpus, else as many as the engine "
    "spans (tensor_parallel_size), from GPU 0.",
)  # fmt: skip
@click.option(
    "--decoupled/--no-decoupled", default=None,
    help="Decoupled models stream, over gRPC and generate_stream, and answer generate. The others answer plain infer "
    f"requests and generate. {_default('decoupled')}",
)  # fmt: skip
@click.option(
    "--tenant-parameter", metavar="NAME",
    help="The request parameter that names the tenant. A gateway must set it: Triton checks nobody's identity. "
    f"{_default('tenant_parameter')}",
)  # fmt: skip
@click.option(
    "--require-tenant/--no-require-tenant", default=None,
    help=f"Refuse requests without a tenant, or let them share the tenant ''. {_default('require_tenant')}",
)  # fmt: skip
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE",
    help="A setting that trtserve has as a flag, by the flag's name with underscores, such as threads=4 or "
    "prompt_lookup_shared_cache_mb=64. May be repeated. Default: the recipe's triton.max_queue and triton.threads.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a model that trtbuild did not write. Default: refuse.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object. Default: text.")
def command(
    engine_dir_path: Path,
    repository: Path,
    model_name: str | None,
    version: int | None,
    link: bool,
    instances: int | None,
    kind: Kind | None,
    gpus: tuple[str, ...],
    decoupled: bool | None,
    tenant_parameter: str | None,
    require_tenant: bool | None,
    overrides: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Write a Triton model for an engine directory.

    REPO/NAME gets a config.pbtxt and one version with the engine and a model.py, which needs trtlookup in the Python
    environment of Triton's Python backend. The model is replaced whole or not at all. What the recipe's section triton
    says is done unless a flag says otherwise.
    """
    manifest = engine_dir.load(engine_dir_path)
    resolved = deployment.read_resolved(engine_dir_path)
    planned = deployment.of_engine(engine_dir_path, resolved)
    settings = {**planned.overrides, **_settings(overrides)}
    try:
        span = deployment.gpus_per_instance(manifest.target, resolved)
        sets = gpu_sets(planned, manifest.target, span, given=gpus, kind=kind)
        if sets and manifest.target == "torch":
            settings.setdefault("device", "cuda:0")
        Overrides.parse(settings).speculative(manifest)
        config = ModelConfig(
            name=planned.model_name if model_name is None else model_name,
            version=planned.version if version is None else version,
            instances=planned.instances if instances is None else instances,
            gpus=sets,
            decoupled=planned.decoupled if decoupled is None else decoupled,
            tenant_parameter=planned.tenant_parameter if tenant_parameter is None else tenant_parameter,
            require_tenant=planned.require_tenant if require_tenant is None else require_tenant,
            overrides=settings,
        )
    except (OverrideError, PlacementError, ValueError) as e:
        raise click.UsageError(str(e)) from e
    directory = write_model(engine_dir_path, repository, config, link=link, force=force)
    if as_json:
        report = {
            "status": "written",
            "model": str(directory),
            "name": config.name,
            "version": config.version,
            "engine": str(engine_dir_path),
            "instances": config.count,
            "gpus": [list(s) for s in sets],
            "decoupled": config.decoupled,
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
