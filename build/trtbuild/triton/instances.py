"""Which GPUs the instances of a model get: from the command line, else from the recipe's section ``triton``."""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.triton.deployment import Deployment, Kind
from trtserve.triton.placement import PlacementError, parse_gpu_sets


def gpu_sets(
    deployment: Deployment, target: str, per_instance: int, *, given: Sequence[str] = (), kind: Kind | None = None
) -> tuple[tuple[int, ...], ...]:
    """One set of GPU ids per placement; none: the CPU. Raises PlacementError for what an engine cannot be given.

    ``given`` (``--gpus``) and ``kind`` (``--kind``) overrule the recipe's ``gpus`` and ``kind``, both of them.
    """
    sets = parse_gpu_sets(";".join(given)) if given else ()
    for gpus in sets:
        if len(gpus) != per_instance:
            raise PlacementError(
                f"--gpus {','.join(map(str, gpus))}: {len(gpus)} GPUs for an instance, but the engine spans "
                f"{per_instance}; allowed: {per_instance} ids in each set"
            )
    if sets:
        asked = {"kind": kind or "auto", "gpus": sets[0]}  # the sets are alike
    else:
        asked = {} if kind is None else {"kind": kind, "gpus": () if kind == "cpu" else deployment.gpus}
    deployment = deployment.model_copy(update=asked)
    # What a recipe may not say, the flags may not.
    for key, message in deployment.problems(target, per_instance):
        if key in asked:
            raise PlacementError(f"--{key}: {message}")
    return sets or deployment.gpu_sets(target, per_instance)
