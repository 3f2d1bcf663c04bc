"""What every checkpoint format delivers, whatever it is stored in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtserve.engine_dir import TokenizerRecord
from trtserve.model_config import DecoderConfig, Dtype

if TYPE_CHECKING:
    import torch  # seconds of loading that asking for a checkpoint's files should not cost

LISTED = 8
"""How many names of a kind an error lists before it only counts."""


class CheckpointError(Exception):
    """A checkpoint that cannot be read, or cannot be read *exactly*. The message names the file, the field or tensor,
    what was found and what is supported."""


class Checkpoint(ABC):
    """A model's weights, config and tokenizer. Opening one reads metadata only; weights stream from ``tensors``."""

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """Every file whose bytes decide what is built, in a fixed order."""

    @abstractmethod
    def config(self, dtype: Dtype) -> DecoderConfig:
        """The decoder's shape, to be stored as ``dtype``. Raises CheckpointError for a field it cannot honour."""

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor of ``config(...).tensor_shapes()`` once, under its canonical name, one in memory at a time.

        Floating point, contiguous, on the CPU, in the type it is stored in (float32 where it was quantised). Names and
        shapes are checked before the first is yielded: a missing, unexpected or misshapen tensor is a CheckpointError.
        """

    @abstractmethod
    def save_tokenizer(self, directory: Path) -> TokenizerRecord:
        """Write ``tokenizer.json``, and ``chat_template.jinja`` where there is one, into an existing directory."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Facts for people and reports: format, architecture, where it came from. JSON types only."""


def check_tensors(
    where: str, names: Mapping[str, str], config: DecoderConfig, stored: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise CheckpointError unless ``stored`` (name to shape) holds exactly what ``config`` needs.

    ``names`` maps each canonical name to the name it is stored under.
    """
    needed = {names[canonical]: shape for canonical, shape in config.tensor_shapes().items()}
    missing = [name for name in needed if name not in stored]
    unexpected = [name for name in stored if name not in needed]
    misshapen = [
        f"{name} is {list(stored[name])}, the config asks for {list(shape)}"
        for name, shape in needed.items()
        if name in stored and tuple(stored[name]) != shape
    ]
    problems = [
        f"{kind}: {', '.join(found[:LISTED])}{f' and {len(found) - LISTED} more' if len(found) > LISTED else ''}"
        for kind, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if found
    ]
    if problems:
        raise CheckpointError(f"{where}: tensors do not match the config; {'; '.join(problems)}")
