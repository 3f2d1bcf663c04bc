"""The replay: rounds, rows and times of traces small enough to count by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.replay.core import Limits, replay
from trtserve.replay.curves import CostModel, CurveError, load_curve, shipped_curves
from trtserve.replay.page import page
from trtserve.replay.policies import Draft, NativePolicy
from trtserve.replay.report import as_json, by_source, summarize, table
from trtserve.replay.traces import Trace, TraceError, read_traces, write_traces
from trtserve.settings import PromptLookup

from .fixed import Fixed

LINE = CostCurve(
    device="line",
    points=tuple(
        CostPoint(batch=b, rows=r, context=0, seconds=b / 2 + 0.1 * b * (r - 1) + 0.5) for b in (1, 4) for r in (1, 9)
    ),
)


def test_rounds_rows_and_time_of_one_trace() -> None:
    """Two drafts right, two of which one is right, none; the last token alone."""
    trace = Trace((1,), (5, 6, 7, 8, 9, 10))
    run = replay([trace], Fixed([[5, 6], [8, 0], []]), keep_rounds=True)
    (result,) = run.results
    assert (result.rounds, result.drafted, result.accepted, result.wasted, result.copies) == (3, 4, 3, 1, 2)
    assert [(r.start, r.accepted, r.emitted) for r in result.kept] == [(0, 2, 3), (3, 1, 2), (5, 0, 1)]
    assert run.time(CostModel(LINE).time) == pytest.approx(1.2 + 1.2 + 1.0)
    assert run.plain_time(CostModel(LINE).time) == pytest.approx(6.0)
    assert run.speedup(CostModel(LINE).time) == pytest.approx(6 / 3.4)
    assert by_source(run.results) == {"history": (4, 3)}


def test_a_draft_never_holds_the_last_token() -> None:
    """The engine's limit: what is left of the budget less one, so the bonus token has its place."""
    policy = Fixed([[5, 6, 7]])
    run = replay([Trace((1,), (5, 6, 7))], policy)
    assert policy.limits == [2]
    assert run.results[0].rounds == 1


def test_batches_run_side_by_side() -> None:
    traces = [Trace((1,), (5, 6)), Trace((1,), (5, 6, 7)), Trace((1,), (5,)), Trace((1,), ())]
    run = replay(traces, Fixed([]), batch=2, limits=Limits(lone=4, shared=2))
    assert dict(run.shapes) == {(2, 0): 3}, "the third starts where the first ends"
    assert dict(run.plain) == {2: 3}
    assert [len(r.trace.output) for r in run.results] == [2, 3, 1], "in the order they end"


def test_limits_depend_on_the_batch() -> None:
    limits = Limits(lone=4, shared=2, most_seqs=3)
    assert [limits.of(b) for b in (1, 2, 3, 4)] == [4, 2, 2, 0]
    policy = Fixed([])
    replay([Trace((1,), (5,) * 9)] * 3, policy, batch=3, limits=limits)
    assert set(policy.limits) == {2, 1}


def test_a_tree_is_accepted_along_its_branches() -> None:
    tree = Draft((1, 2, 3, 4), parents=(-1, -1, 1, 2), rows=12)
    assert [tree.accepted(f) for f in ([2, 3, 4, 9], [1, 3], [2, 4], [9], [2, 3, 4])] == [3, 1, 1, 0, 3]
    assert tree.extra_rows == 12


@pytest.mark.parametrize("policy", ["adaptive", "window"])
def test_the_real_drafter_is_replayed(policy: str) -> None:
    text = tuple(range(10, 60))
    settings = PromptLookup.model_validate({"policy": policy, "max_drafts": 8})
    run = replay([Trace((1, *text, 2), text)], NativePolicy(settings), limits=Limits(lone=8))
    assert run.rounds < 25
    assert run.results[0].wasted < 10
    assert run.tokens == 50
    assert run.host_ns > 0


def test_predictions_are_sources() -> None:
    text = tuple(range(10, 60))
    run = replay(
        [Trace((1, 2, 3), text, prediction=text)],
        NativePolicy(PromptLookup()),
        limits=Limits(lone=32),
        keep_rounds=True,
    )
    assert run.rounds <= 6
    assert set(by_source(run.results)) == {"prediction"}


def test_reports() -> None:
    run = replay([Trace((1,), (5, 6, 7, 8, 9, 10), kind="a", label="b")], Fixed([[5, 6]]), keep_rounds=True)
    model = CostModel(LINE)
    summary = summarize("a (b)", run, model)
    assert summary.speedup == pytest.approx(6 / 4.2)
    assert (summary.tokens, summary.rounds, summary.tokens_per_round) == (6, 4, 1.5)
    text = table([summary])
    assert text.splitlines()[1].startswith("a (b)     fixed")
    assert "1.43x" in text
    assert as_json([summary])[0]["workload"] == "a (b)"
    html = page([(summary, run)], model, "<line>", lambda ids: "".join(f"<{i}>" for i in ids))
    assert "&lt;line&gt;" in html, "escaped"
    assert '<span class="history">&lt;5&gt;&lt;6&gt;</span><span class="model">&lt;7&gt;</span>' in html
    assert "3 tokens for 1.20 of a step; drafted 2 from history" in html
    assert "<script" not in html


def test_traces_come_back_as_they_were_written(tmp_path: Path) -> None:
    traces = [
        Trace((1, 2), (3,), "kind", "name", "label", "group"),
        Trace((0,), (), prediction=(4, 5)),
    ]
    for name in ("t.jsonl", "t.jsonl.gz"):
        write_traces(tmp_path / name, traces)
        assert list(read_traces(tmp_path / name)) == traces
    first = (tmp_path / "t.jsonl.gz").read_bytes()
    write_traces(tmp_path / "t.jsonl.gz", traces)
    assert (tmp_path / "t.jsonl.gz").read_bytes() == first
    assert gzip.decompress(first) == (tmp_path / "t.jsonl").read_bytes()
    assert [t.workload for t in traces] == ["kind (label)", "traces"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "t.jsonl:2: not a trace"),
        ("[]", "not a JSON object"),
        ('{"prompt": [1]}', "output is not a list of token ids"),
        ('{"prompt": [1, -1], "output": []}', "prompt is not a list of token ids"),
        ('{"prompt": [true], "output": []}', "prompt is not"),
        ('{"prompt": [1], "output": [2147483648]}', "output is not"),
        ('{"prompt": [1], "output": [], "prediction": "x"}', "prediction is not"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": [1], "output": [2]}\n' + line + "\n")
    with pytest.raises(TraceError, match=message):
        list(read_traces(path))


def test_a_damaged_archive_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_traces(path, [Trace((1,) * 100, tuple(range(500)))])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"t\.jsonl\.gz"):
        list(read_traces(path))
    path.write_bytes(b"plain text")
    with pytest.raises(TraceError, match=r"t\.jsonl\.gz"):
        list(read_traces(path))


def test_curves_by_name_and_by_file(tmp_path: Path) -> None:
    assert {"cpu-fp16", "cpu-fp32", "gpu-modelled", "llama-cpp-q4", "row-0.05"} <= set(shipped_curves())
    for name in shipped_curves():
        model = CostModel(load_curve(name))
        assert model.time(1, 0) == pytest.approx(1), "in steps"
        costs = [model.relative(1, extra) for extra in range(33)]
        assert costs == sorted(costs)
        assert costs[32] > 1
    assert CostModel(load_curve("row-0.05")).relative(16, 4) == pytest.approx(1.2)
    path = tmp_path / "mine.json"
    path.write_text(LINE.model_dump_json())
    assert load_curve(str(path)) == LINE
    with pytest.raises(CurveError, match=r"nowhere is neither a file nor .*cpu-fp16"):
        load_curve("nowhere")
    path.write_text(json.dumps({"device": "x"}))
    with pytest.raises(CurveError, match=r"mine\.json: not a cost curve"):
        load_curve(str(path))


def test_steps_lie_between_measured_batches() -> None:
    model = CostModel(LINE)
    assert [model.step(b) for b in (1, 2, 4, 9)] == pytest.approx([1.0, 1.5, 2.5, 2.5])
    assert CostModel(None).time(7, 2) == pytest.approx(1.1)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="batch is 0"):
        replay([], Fixed([]), batch=0)
