"""The recipe's section ``triton``: how an engine is deployed on Triton Inference Server.

It travels in the engine's resolved recipe, where ``trtbuild triton`` finds it; the command's flags overrule it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from trtbuild.section import NAME_PATTERN, Section
from trtserve.engine_dir import RECIPE_NAME, EngineDirError
from trtserve.executor.base import MAX_THREADS
from trtserve.overrides import DEFAULT_QUEUE, MAX_QUEUE

#: The name that clients of TensorRT-LLM's Triton model ask for.
DEFAULT_MODEL_NAME = "tensorrt_llm"
MAX_INSTANCES = 128
MAX_VERSION = (1 << 31) - 1

Kind = Literal["auto", "cpu", "gpu"]


class Deployment(Section):
    """The model that ``trtbuild triton`` writes for the engine."""

    model_name: str = Field(default=DEFAULT_MODEL_NAME, pattern=NAME_PATTERN, description="the model's name in Triton")
    version: int = Field(default=1, ge=1, le=MAX_VERSION, description="the model's version in Triton")
    instances: int = Field(
        default=1,
        ge=1,
        le=MAX_INSTANCES,
        description="instances on each GPU set, or on the CPU; each has an engine, slots and caches of its own",
    )
    kind: Kind = Field(
        default="auto", description="where instances compute; auto: on GPUs, but target torch without gpus on the CPU"
    )
    gpus: tuple[Annotated[int, Field(ge=0, le=1023)], ...] = Field(
        default=(),
        description="ids of the GPUs to use, dealt out in order, as many to an instance as the engine spans; "
        "empty: from GPU 0, for one instance",
    )
    decoupled: bool = Field(default=True, description="stream, over gRPC and generate_stream, or answer plain requests")
    tenant_parameter: str = Field(
        default="tenant", pattern=NAME_PATTERN, description="the request parameter that names the tenant"
    )
    require_tenant: bool = Field(default=False, description="refuse requests without a tenant")
    max_queue: int = Field(
        default=DEFAULT_QUEUE, ge=1, le=MAX_QUEUE, description="requests of one instance that may wait for a slot"
    )
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = Field(
        default=None, description="CPU threads of one instance; null: all cores"
    )

    def problems(self, target: str, gpus_per_instance: int) -> Iterator[tuple[str, str]]:
        """What cannot be honoured for an engine of ``target``: (key, message) for each."""
        if self.kind == "cpu" and target != "torch":
            yield "kind", f"given cpu, but target {target} computes on GPUs; allowed: auto, gpu"
        if self.threads is not None and target == "tensorrt_llm":
            yield "threads", f"given {self.threads}, but TensorRT-LLM computes on GPUs; allowed: null"
        if self.gpus and self.kind == "cpu":
            yield "gpus", "is given with kind cpu; allowed: no gpus, or kind auto or gpu"
        if twice := sorted({gpu for gpu in self.gpus if self.gpus.count(gpu) > 1}):
            yield "gpus", f"names GPU {twice[0]} twice; allowed: each id once (more instances on each: instances)"
        if len(self.gpus) % gpus_per_instance:
            yield (
                "gpus",
                f"given {len(self.gpus)} ids, but the engine spans {gpus_per_instance} GPUs; "
                f"allowed: a multiple of {gpus_per_instance}",
            )

    def gpu_sets(self, target: str, gpus_per_instance: int) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each placement; none: the CPU."""
        if self.gpus:
            starts = range(0, len(self.gpus), gpus_per_instance)
            return tuple(self.gpus[start : start + gpus_per_instance] for start in starts)
        # A torch engine runs on the CPU unless told otherwise, as it does under trtserve.
        on_cpu = self.kind == "cpu" or (self.kind == "auto" and target == "torch")
        return () if on_cpu else (tuple(range(gpus_per_instance)),)

    @property
    def overrides(self) -> dict[str, Any]:
        """Its fields that are ``trtserve.overrides.Overrides``', where they differ from what is served anyway."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in ("max_queue", "threads")}
        return {name: value for name, value in values.items() if value != fields[name].default}


def read_resolved(engine: Path) -> dict[str, Any]:
    """An engine's resolved recipe; empty for a directory without one. Raises EngineDirError."""
    path = engine / RECIPE_NAME
    if not path.is_file():
        return {}
    try:
        resolved = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as e:
        raise EngineDirError(f"{path}: cannot be read: {e}") from e
    if not isinstance(resolved, dict):
        raise EngineDirError(f"{path}: is no mapping, so it is not the recipe of an engine")
    return resolved


def of_engine(engine: Path, resolved: Mapping[str, Any]) -> Deployment:
    """The section of an engine's resolved recipe, or its defaults. Raises EngineDirError."""
    try:
        return Deployment.model_validate_json(json.dumps(resolved.get("triton") or {}))
    except ValidationError as e:
        problems = "; ".join(f"triton.{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise EngineDirError(f"{engine / RECIPE_NAME}: {problems}") from e


def gpus_per_instance(target: str, resolved: Mapping[str, Any]) -> int:
    """GPUs that one engine spans, by the target's section of a resolved recipe."""
    section = resolved.get(target) or {}
    size = section.get("tensor_parallel_size", 1) if target == "tensorrt_llm" else 1
    return size if isinstance(size, int) and size > 0 else 1
