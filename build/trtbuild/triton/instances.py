"""Which GPUs the instances of a model get: from the command line, else from the recipe's section ``triton``."""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.triton.deployment import Deployment, Kind
from trtserve.triton.placement import PlacementError, parse_gpu_sets


def gpu_sets(
    deployment: Deployment, target: str, per_instance: int, *, given: Sequence[str] = (), kind: Kind | None = None
) -> tuple[tuple[int, ...], ...]:
    """One set of GPU ids per placement; none: the CPU. Raises PlacementError where the engine needs another number.

    ``given`` (``--gpus``) and ``kind`` (``--kind``) overrule the recipe's ``gpus`` and ``kind``, both of them.
    """
    if given and kind == "cpu":
        raise PlacementError(f"--gpus {given[0]}: is given with --kind cpu; allowed: one of the two")
    if kind == "cpu" and target != "torch":
        raise PlacementError(f"--kind cpu: target {target} computes on GPUs; allowed: auto, gpu")
    if not given:
        if kind is not None:
            kept = () if kind == "cpu" else deployment.gpus
            deployment = deployment.model_copy(update={"kind": kind, "gpus": kept})
        return deployment.gpu_sets(target, per_instance)
    sets = parse_gpu_sets(";".join(given))
    for gpus in sets:
        if len(gpus) != per_instance:
            raise PlacementError(
                f"--gpus {','.join(map(str, gpus))}: {len(gpus)} GPUs for an instance, but the engine spans "
                f"{per_instance}; allowed: {per_instance} ids in each set"
            )
    return sets
