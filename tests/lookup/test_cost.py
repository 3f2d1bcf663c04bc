"""The one reading of a measured curve: what the drafter, the chain gate and the replay all weigh with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.lookup.cost import ForwardCost, read_curve, verify_cost
from trtserve.replay.curves import CostModel

Key = tuple[int, int, int]


def curve(seconds: dict[Key, float]) -> CostCurve:
    """By (batch, rows, context)."""
    points = (CostPoint(batch=b, rows=r, context=c, seconds=s) for (b, r, c), s in seconds.items())
    return CostCurve(device="cpu", points=tuple(points))


def read(seconds: dict[Key, float]) -> ForwardCost:
    cost = read_curve(curve(seconds))
    assert cost is not None
    return cost


#: 1 + 0.1 for each further row of the batch; the longer context half as dear again.
LINE = {
    (b, r, c): (1 + 0.1 * (b * r - 1)) * (1.5 if c > 100 else 1.0)
    for b in (1, 4)
    for r in (1, 2, 5, 9)
    for c in (64, 512)
}


def test_between_measured_points_it_is_on_the_line() -> None:
    cost = read(LINE)
    assert cost.seconds(1, 1, 64) == pytest.approx(1.0)
    assert cost.seconds(1, 3, 64) == pytest.approx(1.2)
    assert cost.seconds(2, 1, 64) == pytest.approx(1.1)
    assert cost.seconds(3, 4, 64) == pytest.approx((1.3 + 2 * 2.5) / 3)


def test_past_the_widest_row_the_last_line_goes_on_and_past_the_largest_batch_nothing_changes() -> None:
    cost = read(LINE)
    assert cost.seconds(1, 20, 64) == pytest.approx(2.9)
    assert cost.seconds(9, 3, 64) == cost.seconds(4, 3, 64)
    assert read({(2, 1, 0): 1.0, (2, 2, 0): 3.0}).seconds(1, 2, 0) == 3.0


def test_the_nearest_context_of_each_batch_counts() -> None:
    cost = read(LINE)
    assert cost.seconds(1, 1, 10) == pytest.approx(1.0)
    assert cost.seconds(1, 1, 400) == pytest.approx(1.5)
    # A context is cut to what fits beside the rows, so batches need not have been measured at the same ones.
    cut = read({(1, 1, 128): 1.0, (1, 1, 990): 1.5, (8, 1, 128): 2.0, (8, 1, 1015): 4.0})
    assert (cut.seconds(1, 1, 1010), cut.seconds(8, 1, 1010)) == (1.5, 4.0)
    assert (cut.seconds(1, 1, 0), cut.seconds(8, 1, 0)) == (1.0, 2.0)


def test_without_a_context_it_is_the_mean_step_with_the_dearest_rows() -> None:
    cost = read({(1, 1, 0): 1.0, (1, 2, 0): 1.5, (1, 3, 0): 1.6, (1, 1, 9): 3.0, (1, 2, 9): 3.3, (1, 3, 9): 6.0})
    assert [cost.seconds(1, rows) for rows in (1, 2, 3)] == pytest.approx([2.0, 3.0, 4.0])


def test_no_row_looks_free() -> None:
    cost = read({(1, 1, 0): 1.0, (1, 2, 0): 1.4, (1, 3, 0): 1.2, (1, 4, 0): 1.3})
    assert [cost.seconds(1, rows, 0) for rows in (1, 2, 3, 4, 9)] == [1.0, 1.4, 1.4, 1.4, 1.4]


def test_what_cannot_be_compared_is_left_out() -> None:
    half = {(1, 1, 0): 1.0, (1, 2, 0): 2.0, (1, 1, 9): 5.0, (4, 2, 0): 7.0}
    cost = read(half)
    assert cost.batches == (1,)
    assert cost.seconds(4, 1, 9) == 1.0
    assert read_curve(None) is None
    assert read_curve(CostCurve(device="cpu", points=())) is None
    assert read_curve(curve({(4, 2, 0): 7.0})) is None
    assert verify_cost(curve({(4, 2, 0): 7.0})).at(1, 1) == verify_cost(None).at(1, 1)


TIMES = st.floats(0.01, 10)
CURVES = st.builds(
    lambda batches, rows, contexts, times: {
        (b, r, c): next(times) for b in batches for r in (1, *rows) for c in contexts
    },
    st.sets(st.sampled_from([1, 2, 8, 32]), min_size=1),
    st.sets(st.sampled_from([2, 3, 9, 17]), min_size=1),
    st.sets(st.sampled_from([0, 128, 1024]), min_size=1),
    st.lists(TIMES, min_size=60, max_size=60).map(iter),
)


@settings(max_examples=100, deadline=None)
@given(seconds=CURVES, batch=st.integers(1, 40), rows=st.integers(1, 20))
def test_drafter_gate_and_replay_read_the_same(seconds: dict[Key, float], batch: int, rows: int) -> None:
    cost, model = read(seconds), CostModel(curve(seconds))
    relative = verify_cost(curve(seconds))
    expected = cost.seconds(batch, rows) / cost.seconds(batch, 1)
    assert relative.at(batch, (rows - 1) * batch) == pytest.approx(expected)
    assert model.time(batch, (rows - 1) * batch) == pytest.approx(cost.seconds(batch, rows))
    # At any context a row more never costs less, and with one context there is nothing to choose from.
    for context in {c for _, _, c in seconds}:
        assert cost.seconds(batch, rows, context) <= cost.seconds(batch, rows + 1, context)
    if len({c for _, _, c in seconds}) == 1:
        assert cost.seconds(batch, rows, 77) == pytest.approx(cost.seconds(batch, rows))
