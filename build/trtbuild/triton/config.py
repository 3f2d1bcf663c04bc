"""``config.pbtxt``: what Triton must know of the model before it loads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtbuild.section import NAME_PATTERN
from trtserve.triton.interface import INPUTS, MAX_BATCH_SIZE, OUTPUTS, TEXT_INPUT, TensorSpec
from trtserve.triton.placement import PARAMETER as GPU_PARAMETER

#: The first line of every config that ``trtbuild`` wrote: a model that begins with it may be replaced.
MARK = "# Written by trtbuild triton; write it again rather than edit it."
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True)
class ModelConfig:
    """A model's settings in Triton. Raises ValueError for a name that is none."""

    name: str
    version: int = 1
    """The one version that the model has."""
    instances: int = 1
    """On each GPU set, or on the CPU."""
    gpus: tuple[tuple[int, ...], ...] = ()
    decoupled: bool = True
    tenant_parameter: str = "tenant"
    require_tenant: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """``trtserve.overrides.Overrides``' fields."""

    def __post_init__(self) -> None:
        for what, name in (("--model-name", self.name), ("--tenant-parameter", self.tenant_parameter)):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{what} {name!r}: allowed: letters, digits and . _ -, a letter or digit first")

    @property
    def count(self) -> int:
        """All instances."""
        return self.instances * max(len(self.gpus), 1)

    @property
    def parameters(self) -> dict[str, str]:
        """What ``model.py`` reads."""
        values = {"tenant_parameter": self.tenant_parameter, "require_tenant": str(self.require_tenant).lower()}
        if self.overrides:
            values["overrides"] = json.dumps(dict(self.overrides))
        if self.gpus:
            values[GPU_PARAMETER] = ";".join(",".join(map(str, s)) for s in self.gpus for _ in range(self.instances))
        return values

    def to_pbtxt(self) -> str:
        """The protocol buffer's text."""
        # The kind is what Triton itself does for the instance, which is nothing: model.py places the engine.
        blocks = [
            MARK,
            f'name: {_quoted(self.name)}\nbackend: "python"\nmax_batch_size: {MAX_BATCH_SIZE}',
            f"model_transaction_policy {{ decoupled: {str(self.decoupled).lower()} }}",
            f"instance_group [ {{ count: {self.count} kind: KIND_CPU }} ]",
            *(
                f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"
                for key, value in self.parameters.items()
            ),
            _tensors("input", INPUTS),
            _tensors("output", OUTPUTS),
        ]
        return "\n".join(blocks) + "\n"


def _tensors(kind: str, specs: Iterable[TensorSpec]) -> str:
    lines = []
    for spec in specs:
        optional = " optional: true" if kind == "input" and spec is not TEXT_INPUT else ""
        lines.append(
            f"  # {spec.about}\n"
            f"  {{ name: {_quoted(spec.name)} data_type: TYPE_{spec.type} dims: [ {spec.size} ]{optional} }}"
        )
    return f"{kind} [\n" + ",\n".join(lines) + "\n]"


def _quoted(text: str) -> str:
    """A string of the text format: JSON's escapes are a part of its own."""
    return json.dumps(text)
