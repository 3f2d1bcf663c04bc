"""Traces: token ids of prompts and of the outputs they got, one JSON object a line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast


class TraceError(ValueError):
    """A file that holds no traces. The message names file, line and what is wrong."""


@dataclass(frozen=True)
class Trace:
    """One request: ``{"kind", "name", "label", "group", "prompt": [ids], "output": [ids]}``; names may be missing.

    ``label`` says where the output came from, ``group`` names requests of one conversation or template.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    kind: str = ""
    name: str = ""
    label: str = ""
    group: str = ""
    prediction: tuple[int, ...] = ()

    @property
    def workload(self) -> str:
        """What results are summed by."""
        return f"{self.kind} ({self.label})" if self.label else self.kind or "traces"

    def as_dict(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "name": self.name, "label": self.label, "group": self.group}
        tokens = {"prompt": list(self.prompt), "output": list(self.output)}
        return {**fields, **tokens, **({"prediction": list(self.prediction)} if self.prediction else {})}


def open_text(path: Path) -> IO[str]:
    """A text file, gzipped where its name ends in ``.gz``. The caller closes it."""
    if path.suffix == ".gz":
        return cast("IO[str]", gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def read_traces(path: Path) -> Iterator[Trace]:
    """The traces of a ``.jsonl`` or ``.jsonl.gz`` file. Raises TraceError, and OSError where it cannot be read."""
    with open_text(path) as lines:
        read = 0
        try:
            for line in lines:
                read += 1
                if line.strip():
                    yield _parse(line)
        except RecursionError:
            raise TraceError(f"{path}:{read}: not a trace: nested too deeply") from None
        except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as e:
            raise TraceError(f"{path}:{max(read, 1)}: not a trace: {e}") from e


def _parse(line: str) -> Trace:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return Trace(
        prompt=_ids(fields, "prompt"),
        output=_ids(fields, "output"),
        kind=_text(fields, "kind"),
        name=_text(fields, "name"),
        label=_text(fields, "label"),
        group=_text(fields, "group"),
        prediction=_ids(fields, "prediction") if "prediction" in fields else (),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    text = str(fields.get(name, ""))
    text.encode()  # half of a surrogate pair is valid JSON, and nothing could print it
    return text


def _ids(fields: dict[str, Any], name: str) -> tuple[int, ...]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(type(t) is int and 0 <= t < 1 << 31 for t in value):
        raise ValueError(f"{name} is not a list of token ids")
    return tuple(value)


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """A ``.jsonl`` or ``.jsonl.gz`` file, byte for byte the same for the same traces."""
    data = "".join(json.dumps(t.as_dict()) + "\n" for t in traces).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
