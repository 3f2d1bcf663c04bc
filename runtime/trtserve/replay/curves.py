"""Cost curves by name or file, and decode time under them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from trtserve.engine_dir import CostCurve
from trtserve.lookup.cost import read_curve, verify_cost

_SHIPPED = files("trtserve.replay") / "shipped"


class CurveError(ValueError):
    """A curve that is not known or not readable. Says which there are."""


def shipped_curves() -> list[str]:
    """Names of the curves that ship. Their times are in steps: one sequence's verify of one row takes 1."""
    return sorted(f.name.removesuffix(".json") for f in _SHIPPED.iterdir() if f.name.endswith(".json"))


def load_curve(name: str) -> CostCurve:
    """A curve that ships, by its name, or one from a JSON file, by its path. Raises CurveError, and OSError where the
    file cannot be read."""
    path = Path(name)
    if name in shipped_curves():
        text = (_SHIPPED / f"{name}.json").read_bytes()
    elif path.is_file():
        text = path.read_bytes()
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
        self._cost = read_curve(curve)

    def relative(self, batch: int, extra: int) -> float:
        """Of a verify of ``batch`` sequences and ``extra`` draft rows, over that of one without drafts."""
        return self._relative.at(batch, extra)

    def step(self, batch: int) -> float:
        """A verify of ``batch`` sequences without drafts: on the line between measured batches, flat past them."""
        return 1.0 if self._cost is None else self._cost.seconds(batch, 1)

    def time(self, batch: int, extra: int) -> float:
        return self.step(batch) * self.relative(batch, extra)
