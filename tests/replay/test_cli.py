"""``trtserve replay`` and ``calibrate``, and recording: what a user types and gets."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.executor import tiny
from trtserve.cli import calibrating, main
from trtserve.engine.protocol import Scope
from trtserve.engine_dir import CostCurve
from trtserve.replay.recording import TraceRecorder
from trtserve.replay.traces import Trace, read_traces, write_traces

TEXT = tuple(range(10, 60))


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    write_traces(
        path, [Trace((1, *TEXT, 2), TEXT, "edit", "one", "written"), Trace((1, 2), TEXT, "prose", "two", "written")]
    )
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_a_table_of_all_policies(traces: Path) -> None:
    code, out = run("replay", traces)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 5, "a head, two workloads of two policies each"
    assert lines[1].split()[:3] == ["edit", "(written)", "adaptive"]
    assert lines[2].split()[2] == "window"


def test_json_under_a_shipped_curve(traces: Path) -> None:
    code, out = run("replay", traces, "--policy", "adaptive", "--curve", "cpu-fp32", "--max-drafts", 8, "--json")
    assert code == 0
    answer = json.loads(out)
    edit, prose = answer["results"]
    assert answer["curve"].startswith("this project's CPU decoder, float32")
    assert edit["speedup"] > 3
    assert edit["rows_per_round"] <= 9
    assert 0.9 < prose["speedup"] <= 1.0, "nothing to copy"


def test_a_page(traces: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, _ = run("replay", traces, "--html", page, "--policy", "adaptive")
    assert code == 0
    text = page.read_text(encoding="utf-8")
    assert '<a class="history" href="#t1-prompt-' in text
    assert text.endswith("</html>\n")


def test_memory_across_traces(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_traces(path, [Trace((1, 2, 3, 4), TEXT)] * 4)
    alone = json.loads(run("replay", path, "--policy", "adaptive", "--json")[1])["results"][0]
    shared = json.loads(run("replay", path, "--policy", "adaptive", "--shared-cache-mb", 1, "--json")[1])["results"][0]
    assert alone["speedup"] == pytest.approx(1, abs=0.05)
    assert shared["speedup"] > 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("{", (), "t.jsonl:1: not a trace"),
        ('{"prompt": [1], "output": []}', (), "no trace with an output"),
        ('{"prompt": [1], "output": [2]}', ("--curve", "nowhere"), "--curve: nowhere is neither a file nor"),
        ('{"prompt": [1], "output": [2], "name": "\\ud800"}', (), "t.jsonl:1: not a trace"),
        ("[" * 100_000, (), "t.jsonl:1: not a trace: nested too deeply"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    tmp_path: Path, content: str, options: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content + "\n")
    code, out = run("replay", path, *options)
    assert code == 1
    assert "Error: " in out and message in out
    assert "Traceback" not in out


def test_a_missing_file_and_a_wrong_policy_are_refused(tmp_path: Path, traces: Path) -> None:
    code, out = run("replay", tmp_path / "none.jsonl")
    assert (code, "No such file" in out) == (1, True)
    code, out = run("replay", traces, "--policy", "clever")
    assert (code, "adaptive" in out) == (2, True)
    code, out = run("replay", traces, "--engine", tmp_path)
    assert code == 3


def test_calibrate_writes_a_curve_that_replay_reads(
    tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tiny random model in the engine's place."""
    model = tiny.config()
    monkeypatch.setattr(calibrating, "load_executor", lambda *_: tiny.executor(model))
    monkeypatch.setattr(calibrating.engine_dirs, "load", lambda _: None)
    out = tmp_path / "curve.json"
    code, said = run("calibrate", tmp_path, "--out", out, "--repeats", 1, "--seconds", 0.5, "--context", 4)
    assert code == 0, said
    curve = CostCurve.model_validate_json(out.read_text())
    assert {p.batch for p in curve.points} >= {1}
    assert run("replay", traces, "--curve", out)[0] == 0


def test_recording_takes_those_who_agreed_and_nothing_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    recorder = TraceRecorder(path, ["alice"])
    prompt, output = np.array([1, 2], np.int32), np.array([3, 4], np.int32)
    nothing = np.array([], np.int32)
    recorder(Scope(tenant="alice"), prompt, output, nothing)
    recorder(Scope(tenant="bob"), prompt, output, nothing)
    recorder(Scope(tenant="alice", salt="x"), prompt, output, np.array([7], np.int32))
    recorder(Scope(tenant="alice"), prompt, nothing, nothing)
    recorder.close()
    recorder(Scope(tenant="alice"), prompt, output, nothing)
    assert recorder.recorded == 2
    assert list(read_traces(path)) == [
        Trace((1, 2), (3, 4), label="recorded"),
        Trace((1, 2), (3, 4), label="recorded", prediction=(7,)),
    ]
    assert b"alice" not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_recording_appends(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    for _ in range(2):
        recorder = TraceRecorder(path, [""])
        recorder(Scope(), np.array([1], np.int32), np.array([2], np.int32), np.array([], np.int32))
        recorder.close()
    assert len(list(read_traces(path))) == 2


def test_recording_that_fails_stops_and_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = TraceRecorder(Path("/dev/full"), [""])
    for _ in range(3):
        recorder(Scope(), np.array([1], np.int32), np.array([2], np.int32), np.array([], np.int32))
    assert recorder.recorded == 0
    assert sum("recording stops" in r.message for r in caplog.records) == 1


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, one = tmp_path / "recorded.jsonl", np.array([1], np.int32)
    recorder = TraceRecorder(path, [""])
    recorder(Scope(), one, one, one)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
    recorder(Scope(), one, one, one)
    monkeypatch.undo()
    recorder(Scope(), one, one, one)
    assert recorder.recorded == 1
    recorder = TraceRecorder(path, [""])
    recorder(Scope(), one, one, one)
    recorder.close()
    assert len(list(read_traces(path))) == 2


def test_recording_goes_on_in_a_line_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, one = tmp_path / "recorded.jsonl", np.array([1], np.int32)
    path.write_text('{"prompt": [1], "output": [2]}')
    path.chmod(0o644)
    recorder = TraceRecorder(path, [""])
    recorder(Scope(), one, one, one)
    recorder.close()
    assert len(list(read_traces(path))) == 2
    assert "others than its owner may use it" in caplog.text


@pytest.mark.parametrize("command", ["replay", "calibrate"])
def test_a_result_that_cannot_be_written_is_refused_before_the_work(traces: Path, tmp_path: Path, command: str) -> None:
    flag = {"replay": "--html", "calibrate": "--out"}[command]
    code, out = run(command, traces, flag, tmp_path / "none" / "result")
    assert code == 2 and "there is no directory" in out
    code, out = run(command, traces, flag, tmp_path)
    assert code == 2 and "is a directory" in out


def test_a_result_on_a_full_disk_is_one_line(traces: Path) -> None:
    code, out = run("replay", traces, "--policy", "adaptive", "--html", "/dev/full")
    assert code == 1 and "Error: /dev/full: cannot be written: No space left on device" in out


def test_a_curve_that_is_no_text_is_refused(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_bytes(b"\xff\xfe")
    code, out = run("replay", traces, "--curve", path)
    assert code == 1 and "not a cost curve" in out


@pytest.mark.parametrize("wrong", [{"rows": 10**12}, {"batch": 10**12}, {"seconds": 1e-300}, {"seconds": 1e300}])
def test_a_curve_that_nothing_can_have_measured_is_refused(traces: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    point = {"batch": 1, "rows": 1, "context": 0, "seconds": 1.0}
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"device": "x", "points": [point, {**point, "rows": 4, **wrong}]}))
    code, out = run("replay", traces, "--curve", path)
    assert code == 1 and "not a cost curve" in out and next(iter(wrong)) in out


def test_recording_to_a_compressed_file_is_refused(tmp_path: Path) -> None:
    code, out = run("serve", tmp_path, "--record-traces", "t.jsonl.gz", "--record-tenant", "alice")
    assert code == 2 and "does not end in .gz" in out


def test_a_recorder_without_tenants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none was given"):
        TraceRecorder(tmp_path / "t.jsonl", [])


def test_a_tenant_that_nobody_is_cannot_be_recorded(tmp_path: Path) -> None:
    code, out = run("serve", tmp_path, "--record-traces", "t.jsonl", "--record-tenant", "alice")
    assert code == 2 and "--record-tenant alice records nobody" in out


def test_a_tenant_without_a_token_is_named(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("bob: bob-token-0123456789\n")
    tokens.chmod(0o600)
    options = ("--record-traces", tmp_path / "t.jsonl", "--record-tenant", "alice", "--record-tenant", "bob")
    _, out = run("serve", tmp_path, *options, "--require-auth", "--auth-tokens-file", tokens, "--port", 0)
    assert "--record-tenant alice: has no token" in out and "bob:" not in out


@pytest.mark.parametrize("options", [("--record-traces", "t.jsonl"), ("--record-tenant", "alice")])
def test_recording_needs_a_file_and_a_tenant(tmp_path: Path, options: tuple[str, str]) -> None:
    code, out = run("serve", tmp_path, *options)
    assert code == 2
    assert "give both or neither" in out
    assert not (tmp_path / "t.jsonl").exists()
