"""Cost curves by name or file, and decode time under them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from trtserve.engine_dir import CostCurve
from trtserve.lookup.cost import verify_cost

_SHIPPED = files("trtserve.replay") / "shipped"


class CurveError(ValueError):
    """A curve that is not known or not readable. Says which there are."""


def shipped_curves() -> list[str]:
    """Names of the curves that ship. Their times are in steps: one sequence's verify of one row takes 1."""
    return sorted(f.name.removesuffix(".json") for f in _SHIPPED.iterdir() if f.name.endswith(".json"))


def load_curve(name: str) -> CostCurve:
    """A curve that ships, by its name, or one from a JSON file, by its path."""
    path = Path(name)
    if name in shipped_curves():
        text = (_SHIPPED / f"{name}.json").read_text(encoding="utf-8")
    elif path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        raise CurveError(f"{name} is neither a file nor a curve that ships: {', '.join(shipped_curves())}")
    try:
        return CostCurve.model_validate_json(text)
    except ValidationError as e:
        raise CurveError(f"{name}: not a cost curve: {e.errors()[0]['msg']} at {e.errors()[0]['loc']}") from e


class CostModel:
    """Decode time under a curve; None is the default: a step of 1 at any batch, 0.05 of it per draft row."""

    def __init__(self, curve: CostCurve | None) -> None:
        self.curve = curve
        self._relative = verify_cost(curve)
        points = [] if curve is None else [p for p in curve.points if p.rows == 1]
        self._steps = [(b, fmean(p.seconds for p in points if p.batch == b)) for b in sorted({p.batch for p in points})]

    def relative(self, batch: int, extra: int) -> float:
        """Of a verify of ``batch`` sequences and ``extra`` draft rows, over that of one without drafts."""
        return self._relative.at(batch, extra)

    def step(self, batch: int) -> float:
        """A verify of ``batch`` sequences without drafts: on the line between measured batches, flat past them."""
        return _on_line(self._steps, batch) if self._steps else 1.0

    def time(self, batch: int, extra: int) -> float:
        return self.step(batch) * self.relative(batch, extra)


def _on_line(points: Sequence[tuple[int, float]], x: int) -> float:
    if x <= points[0][0]:
        return points[0][1]
    for (low, before), (high, after) in pairwise(points):
        if x <= high:
            return before + (after - before) * (x - low) / (high - low)
    return points[-1][1]
