"""Which curve serving weighs drafts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.loading import cost_curve
from trtserve.lookup.cost import verify_cost
from trtserve.overrides import OverrideError, Overrides
from trtserve.settings import Limits, Speculative

from .toy import toy_manifest

POINTS = (CostPoint(batch=1, rows=1, context=0, seconds=1), CostPoint(batch=1, rows=2, context=0, seconds=2))
MEASURED = CostCurve(device="cpu", points=POINTS)


@pytest.mark.parametrize(
    ("device", "curve", "used"),
    [
        (None, MEASURED, True),
        ("cpu", MEASURED, True),
        ("cuda:1", MEASURED, False),
        ("cuda:1", MEASURED.model_copy(update={"device": "cuda:0"}), True),
        (None, None, False),
    ],
)
def test_the_build_s_curve_counts_on_its_kind_of_device(
    device: str | None, curve: CostCurve | None, used: bool
) -> None:
    manifest = toy_manifest(Limits(), Speculative()).model_copy(update={"cost_curve": curve})
    found = cost_curve(manifest, Overrides.parse({"device": device} if device else {}))
    assert found == (curve if used else None)


def test_a_calibrated_curve_takes_its_place(tmp_path: Path) -> None:
    manifest = toy_manifest(Limits(), Speculative()).model_copy(update={"cost_curve": MEASURED})
    path = tmp_path / "curve.json"
    path.write_text(MEASURED.model_copy(update={"device": "cuda:3"}).model_dump_json())
    found = cost_curve(manifest, Overrides.parse({"cost_curve": str(path)}))
    assert found is not None and found.device == "cuda:3"
    path.write_text("{}")
    with pytest.raises(OverrideError, match=r"cost_curve: .*curve\.json: not a cost curve"):
        cost_curve(manifest, Overrides.parse({"cost_curve": str(path)}))
    with pytest.raises(OverrideError, match=r"cost_curve: .*nowhere is neither a file nor"):
        cost_curve(manifest, Overrides.parse({"cost_curve": "nowhere"}))


def test_of_several_contexts_the_dearest_row_counts() -> None:
    """In a large batch a row is dear where the context is short, alone where it is long."""
    times = {
        (1, 128): (1.0, 1.1),
        (1, 1024): (1.0, 1.3),
        (8, 128): (2.0, 4.0),
        (8, 1024): (4.0, 6.0),
    }
    points = tuple(
        CostPoint(batch=batch, rows=rows, context=context, seconds=seconds)
        for (batch, context), by_rows in times.items()
        for rows, seconds in enumerate(by_rows, 1)
    )
    cost = verify_cost(CostCurve(device="cpu", points=points))
    assert cost.at(1, 1) == pytest.approx(1.3)
    assert cost.at(8, 8) == pytest.approx(2.0)
