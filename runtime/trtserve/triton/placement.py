"""Where an instance computes: the GPUs that are its own, from the model's ``gpu_device_ids``.

As in TensorRT-LLM's Triton model the parameter is a list of GPU sets, ``0,1;2,3``, one set per instance: an instance
sees its own GPUs alone and counts them from 0. Without the parameter the engine computes on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARAMETER = "gpu_device_ids"


class PlacementError(ValueError):
    """A parameter that gives this instance no GPUs."""


@dataclass(frozen=True)
class Placement:
    """One instance's GPUs, by their ids on the machine; none: the CPU."""

    gpus: tuple[int, ...] = ()

    @classmethod
    def of(cls, parameters: Mapping[str, str], instance_name: str) -> Placement:
        """``instance_name`` ends in the instance's number, as in ``model_0_1``. Raises PlacementError."""
        text = parameters.get(PARAMETER, "")
        if not text:
            return cls()
        sets = parse_gpu_sets(text)
        number = instance_name.rpartition("_")[2]
        index = int(number) if number.isdigit() else 0
        if index >= len(sets):
            raise PlacementError(
                f"{PARAMETER} is {text!r}, GPUs for {len(sets)} instances, but {instance_name} is number {index}; "
                "write the repository again with trtbuild triton --gpus"
            )
        return cls(sets[index])

    @property
    def environment(self) -> dict[str, str]:
        """What must be set before CUDA is initialized. Without GPUs nothing is hidden: nothing looks for them."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {}

    def __str__(self) -> str:
        return f"on GPU {', '.join(map(str, self.gpus))}" if self.gpus else "on the CPU"


def parse_gpu_sets(text: str) -> tuple[tuple[int, ...], ...]:
    """``0,1;2,3`` as ((0, 1), (2, 3)). Raises PlacementError."""
    sets = []
    for part in text.split(";"):
        ids = [x.strip() for x in part.split(",")]
        if not all(x.isascii() and x.isdigit() for x in ids):
            raise PlacementError(f"{text!r} is no list of GPUs; allowed: ids as in 0,1;2,3, one set per instance")
        gpus = tuple(map(int, ids))
        if len(set(gpus)) < len(gpus):
            raise PlacementError(f"{text!r} names a GPU twice in one set")
        sets.append(gpus)
    return tuple(sets)
