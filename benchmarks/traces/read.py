"""Traces as they are read: (prompt, output) pairs with where they came from."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LABELS = ("written", "model", "prefix")


@dataclass(frozen=True)
class Trace:
    kind: str
    name: str
    label: str
    group: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def workload(self) -> str:
        return f"{self.kind} ({self.label})"

    @property
    def half(self) -> int:
        """0 or 1, the same for all cases of a group and all outputs of a case: for fitting on one half alone."""
        return zlib.crc32(f"{self.kind}/{self.group or self.name}".encode()) & 1


def read(path: Path) -> Iterator[Trace]:
    """The traces of a ``.jsonl`` or ``.jsonl.gz`` file. Raises ValueError naming file, line and what is wrong."""
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                yield Trace(
                    fields["kind"],
                    fields["name"],
                    fields["label"],
                    fields.get("group", ""),
                    tuple(fields["prompt"]),
                    tuple(fields["output"]),
                )
            except (ValueError, KeyError, TypeError) as e:
                raise ValueError(f"{path}:{number}: not a trace: {e}") from e


def shipped(labels: tuple[str, ...] = LABELS) -> list[Trace]:
    """The traces of this directory that have an output."""
    return [t for label in labels for t in read(HERE / f"{label}.jsonl.gz") if t.output]
