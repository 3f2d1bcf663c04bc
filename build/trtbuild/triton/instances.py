"""Which GPUs the instances of a model get: from the command line, else from the engine's recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from trtserve.engine_dir import Manifest
from trtserve.triton.placement import PlacementError, parse_gpu_sets

RECIPE_NAME = "recipe.yaml"


def gpu_sets(engine: Path, manifest: Manifest, given: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """One set of GPU ids per placement; none: the CPU. Raises PlacementError where the engine needs another number."""
    per_instance = gpus_per_instance(engine, manifest)
    if not given:
        # A torch engine runs on the CPU unless told otherwise, as it does under trtserve.
        return () if manifest.target == "torch" else (tuple(range(per_instance)),)
    sets = parse_gpu_sets(";".join(given))
    for gpus in sets:
        if len(gpus) != per_instance:
            raise PlacementError(
                f"--gpus {','.join(map(str, gpus))}: {len(gpus)} GPUs for an instance, but the engine spans "
                f"{per_instance}; allowed: {per_instance} ids in each set"
            )
    return sets


def gpus_per_instance(engine: Path, manifest: Manifest) -> int:
    """GPUs that one engine spans: the product of the parallel sizes in the target's section of the resolved recipe."""
    path = engine / RECIPE_NAME
    if manifest.target != "tensorrt_llm" or not path.is_file():
        return 1
    section = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get(manifest.target) or {}
    count = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = section.get(name, 1)
        count *= size if isinstance(size, int) and size > 0 else 1
    return count
