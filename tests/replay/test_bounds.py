"""Bounds of what a policy could gain, on texts whose answers can be read off."""

from __future__ import annotations

import pytest

from benchmarks.bounds import MATCHES, ROWS, Looking, Node, Price, drafted, joined_copies, least_time, right, times
from benchmarks.policies.adaptive import Adaptive, divide_rows
from benchmarks.policies.oracle import longest_copies
from benchmarks.policy_report import TITLES, more
from benchmarks.traces.read import shipped
from trtserve.lookup import _native
from trtserve.replay.curves import CostModel, load_curve
from trtserve.replay.traces import Trace

PRIORS = _native.shipped_priors()
CURVES = ("gpu-modelled", "cpu-fp16", "llama-cpp-q4")
SOME = [t for t in shipped() if len(t.output) < 60][::40]
#: A text that goes on in three ways.
FORKED = [1, 2, 3, 4, 50, 51, 9, 1, 2, 3, 4, 60, 61, 9, 1, 2, 3, 4, 70, 71, 9, 1, 2, 3, 4]


def price(curve: str) -> Price:
    return Price(CostModel(load_curve(curve)).relative, max(ROWS))


def flat(cost: float) -> Price:
    return Price(lambda batch, extra: 1.0 + cost * extra, max(ROWS))


def at_end(tokens: list[int]) -> Node:
    policy = Looking(tokens[:8], PRIORS)
    for token in tokens[8:]:
        policy.propose(1)
        policy.observe([token])
    return policy.ahead()


@pytest.mark.parametrize("trace", SOME, ids=lambda t: f"{t.workload} {t.name}")
def test_bounds_are_in_order(trace: Trace) -> None:
    plain = len(trace.output)
    for curve, steps in times(trace, PRIORS, {c: price(c) for c in CURVES}).items():
        order = ("joined, match 0", "perfect choice", "perfect cut", f"as it is {ROWS[0]}")
        assert [steps[n] for n in order] == sorted(steps[n] for n in order), curve
        for kind in ("oracle", "joined"):
            held = [steps[f"{kind}, match {m}"] for m in MATCHES]
            assert held == sorted(held), curve
        for match in MATCHES:
            assert steps[f"joined, match {match}"] <= steps[f"oracle, match {match}"] <= plain
        assert steps["joined, match 0"] <= min(steps[f"tree {rows}"] for rows in ROWS)


@pytest.mark.parametrize("curve", CURVES)
def test_without_branches_the_policys_own_drafts_are_taken(curve: str) -> None:
    cost, priced = CostModel(load_curve(curve)).relative, price(curve)
    compared = 0
    for trace in SOME[::2]:
        policy = Looking(list(trace.prompt), PRIORS)
        for token in trace.output:
            chain = drafted(policy.ahead(), priced, 32, 32, branches=False)
            drafts, chances = policy.propose(32)
            count = divide_rows([chances], cost)[0]
            assert chain == {tuple(drafts[: i + 1]) for i in range(count)}
            compared += bool(chain)
            policy.observe([token])
    assert compared


def test_a_tree_holds_paths_whole_and_within_its_rows() -> None:
    root = at_end(FORKED)
    tree = drafted(root, flat(0.001), 12, 4, branches=True)
    assert len({path[0] for path in tree}) >= 2, "more ways than one"
    assert len(tree) <= 12
    assert all(len(path) <= 4 and (len(path) == 1 or path[:-1] in tree) for path in tree)
    likeliest = drafted(root, flat(0.001), 12, 4, branches=False)
    assert {path[0] for path in likeliest} == {root.likeliest}
    assert drafted(root, flat(10.0), 12, 4, branches=True) == set()


def test_chances_of_one_position_add_up_to_at_most_one() -> None:
    node = at_end(FORKED)
    node.likeliest, node.chances = 1, {1: 0.75, 2: 0.5}
    assert dict(node.ways(True)) == pytest.approx({1: 0.6, 2: 0.4})
    assert dict(node.ways(False)) == {1: 0.75}
    node.chances = {1: 0.5, 2: 0.25}
    assert dict(node.ways(True)) == node.chances
    node.likeliest, node.chances = None, {}
    assert list(node.ways(True)) == list(node.ways(False)) == []


def test_looking_ahead_leaves_the_policy_as_it_was() -> None:
    trace = SOME[0]
    looking, plain = Looking(list(trace.prompt), PRIORS), Adaptive(list(trace.prompt), PRIORS)
    for token in trace.output:
        root = looking.ahead()
        for other in list(root.chances):
            root.behind(other)
        assert looking.propose(8) == plain.propose(8)
        looking.observe([token])
        plain.observe([token])


def test_what_is_right_of_a_position() -> None:
    root = at_end(FORKED)
    assert root.likeliest is not None
    assert {50, 60, 70} <= set(root.chances)
    (other, then) = next((a, a + 1) for a in (50, 60, 70) if a != root.likeliest)
    cut, named = right(root, (root.likeliest, root.likeliest + 1, 99))
    assert (cut, named) == (2, 2)
    assert right(root, (other, then, 9, 99)) == (0, 3)
    assert right(root, (99,)) == (0, 0)
    assert right(root, ()) == (0, 0)


def test_an_oracles_copies_may_have_to_match_what_came_before() -> None:
    trace = Trace((1, 2, 3, 4, 9, 5), (3, 4, 9, 7, 2, 3, 4, 8))
    assert longest_copies(trace, (), 8) == [3, 2, 1, 0, 3, 2, 1, 0]
    assert longest_copies(trace, (), 8, match=1) == [0, 2, 1, 0, 0, 2, 1, 0]
    assert longest_copies(trace, (), 8, match=2) == [0, 0, 1, 0, 0, 0, 1, 0]
    assert longest_copies(trace, (), 8, match=20) == [0] * 8
    assert longest_copies(Trace((), (1, 1, 1)), (), 8, match=1) == [0, 0, 1]


def test_joined_copies_need_a_match_at_every_token() -> None:
    trace = Trace((1, 2, 3, 4, 9, 5), (3, 4, 9, 7, 2, 3, 4, 8))
    assert joined_copies(trace, 0, 8) == [3, 2, 1, 0, 3, 2, 1, 0]
    assert joined_copies(trace, 0, 2) == [2, 2, 1, 0, 2, 2, 1, 0]
    assert joined_copies(trace, 1, 8) == [0, 2, 1, 0, 0, 2, 1, 0]
    # After 1 came 2, and after 2 came 7, but never both in a row.
    assert joined_copies(Trace((1, 2, 3, 2, 7, 1), (2, 7, 0)), 1, 8) == [2, 1, 0]
    assert longest_copies(Trace((1, 2, 3, 2, 7, 1), (2, 7, 0)), (), 8, match=1) == [1, 1, 0]
    assert joined_copies(Trace((), (1, 1)), 5, 8) == [0, 0]


def test_rows_are_drafted_only_while_they_pay() -> None:
    assert least_time([3, 2, 1, 0], [1.0, 1.1, 1.2, 1.3]) == pytest.approx(1.3)
    assert least_time([3, 2, 1, 0], [1.0, 1.1, 4.0, 9.0]) == pytest.approx(2.2)
    assert least_time([0, 0, 0], [1.0, 1.1]) == 3.0


def test_the_page_says_what_the_bounds_are() -> None:
    speeds = {
        "as it is 32": 2.0, "tree 32": 2.1, "as it is 64": 2.0, "tree 64": 2.2,
        "perfect cut": 2.4, "perfect choice": 3.2,
        **{f"{kind}, match {m}": 4.0 - m / 2 for kind in ("oracle", "joined") for m in MATCHES},
    }  # fmt: skip
    slower = dict.fromkeys(speeds, 1.0) | {"oracle, match 0": 2.0, "tree 64": 1.5}
    results = {
        workload: dict.fromkeys(TITLES, of)
        for workload, of in {"code_edit (model)": speeds, "prose (model)": slower, "chat (written)": slower}.items()
    }
    page = "\n".join(more({"drafts": 32, "speedups": results}))
    assert "| as it is | 2.00x | 50% | 1.26x | 50% |" in page
    assert "10 (3) points of stopping" in page
    assert "20 (7) points of choice" in page
    assert "and 20 (40) points of tokens that no candidate names" in page
    assert "| edits and rewrites, 32 rows |" + " +5.0% |" * (len(TITLES) + 1) in page
    assert "| all workloads, 64 rows |" + " +35.3% |" * (len(TITLES) + 1) in page
