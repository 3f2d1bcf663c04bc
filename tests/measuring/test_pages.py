"""The pages say what the results say, and the benchmark run loses nothing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages, report, run

ABOUT = {
    "cpu": "some CPU", "cores": 2, "threads": 2, "python": "3", "date": "2026-01-02", "torch": "2", "transformers": "5",
    "numpy": "2", "trtlookup": "0",
}  # fmt: skip
ACCEPT = {
    "threads": 2,
    "instruction_set": "avx2",
    "accept": [{"logits": "float32", "seconds": 0.001, "argmax_seconds": 0.004, "ratio": 0.25}],
    "sampled": [{"sampling": "top_k 50", "row_seconds": 0.0002}],
}
VERIFY = {"small (float32)": {"1": 0.01, "2": 0.011, "5": 0.02}}


def test_the_pages_are_what_the_results_say() -> None:
    """Whoever measures or edits a mark writes the pages anew: ``python -m benchmarks.pages``."""
    for path, text in pages.written(pages.load()).items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python -m benchmarks.pages"


def test_every_plot_of_the_page_is_there() -> None:
    page = pages.ROOT / "docs/benchmarks.md"
    plots = re.findall(r"!\[.+?\]\((.+?)\)", page.read_text(encoding="utf-8"))
    assert plots
    for plot in plots:
        text = (page.parent / plot).read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in text, plot


def test_marks_keep_what_is_around_them() -> None:
    page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert pages.fill(page, "x", "new\n") == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"
    with pytest.raises(ValueError, match="no <!-- y:begin"):
        pages.fill(page, "y", "new")
    with pytest.raises(ValueError, match="x:end"):
        pages.fill("<!-- x:begin -->", "x", "new")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Pages of their own, with the marks and nothing measured."""
    for place in pages.PLACES:
        path = tmp_path / place.page
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else ""
        path.write_text(f"{before}<!-- {place.mark}:begin -->\n<!-- {place.mark}:end -->\n")
    return tmp_path


def measured(root: Path, results: dict[str, Any], names: list[str]) -> list[str]:
    def measure(name: str) -> Any:
        if isinstance(results[name], Exception):
            raise results[name]
        return results[name]

    return run.run(names, root, measure, ABOUT, lambda text: None)


def stored(root: Path) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads((root / "docs/benchmarks.json").read_text())["parts"]
    return parts


def test_a_part_that_fails_is_named_and_the_others_stay(root: Path) -> None:
    pytest.importorskip("matplotlib")
    failed = measured(root, {"verify": RuntimeError("no such engine"), "accept": ACCEPT}, ["verify", "accept"])
    assert failed == ["verify"]
    page = (root / "docs/benchmarks.md").read_text()
    assert "failed:** `2026-01-02: RuntimeError: no such engine`" in page
    assert "| float32 | 1.00 | 4.00 | 0.25x |" in page
    assert "1.0 ms against 4.0 in float32" in (root / "docs/acceptance.md").read_text()


def test_what_is_known_of_a_part_outlives_its_failure_and_other_runs(root: Path) -> None:
    pytest.importorskip("matplotlib")
    assert measured(root, {"verify": VERIFY}, ["verify"]) == []
    assert "failed" not in stored(root)["verify"]
    assert measured(root, {"verify": OSError("gone")}, ["verify"]) == ["verify"]
    measured(root, {"accept": ACCEPT}, ["accept"])
    page = (root / "docs/benchmarks.md").read_text()
    assert "| small (float32) | 10.0 ms (1.00) | 11.0 ms (1.10) | 20.0 ms (2.00) |" in page
    assert "OSError: gone" in page
    assert (root / "docs/plots/verify.svg").is_file()
    assert measured(root, {"verify": VERIFY}, ["verify"]) == []
    assert "OSError" not in (root / "docs/benchmarks.md").read_text()


@pytest.mark.parametrize("failing", ["trtbuild", "benchmarks.verify_cost"])
def test_a_failure_names_no_path(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def process(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 3 if command[2] == failing else 0)

    monkeypatch.setattr(run.subprocess, "run", process)
    with pytest.raises(RuntimeError) as error:
        run.measure(run.PARTS["verify"], quick=False)
    assert str(error.value) == f"{failing} ended with 3"


def test_a_part_measured_elsewhere_says_so() -> None:
    other = {**ABOUT, "date": "2025-05-05"}
    parts = {
        "accept": {"machine": ABOUT, "result": ACCEPT},
        "verify": {"machine": other, "result": VERIFY},
        "speed-float16": {"machine": ABOUT, "failed": "x"},
    }
    page = report.page(parts)
    assert page.index("Measured 2026-01-02") < page.index("## What a verify costs") < page.index("Measured 2025-05-05")
    assert page.count("Measured 2026-01-02") == 1


def test_every_part_has_a_section() -> None:
    assert set(run.PARTS) == set(report.SECTIONS)
    total = sum(part.seconds for part in run.PARTS.values())
    assert total <= 14 * 60, "the whole run fits into a quarter of an hour"


def test_the_same_drawing_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        report.verify_plot(VERIFY, tmp_path / name)
    a, b = ((tmp_path / n).read_text() for n in ("a.svg", "b.svg"))
    assert a == b
    assert "rows of one verify" in a


def test_front_ends_beside_each_other() -> None:
    level = {
        "front": "python", "concurrency": 4, "requests": 8, "tokens_per_second": 100.0, "requests_per_second": 2.0,
        "first_p50": 0.1, "first_p95": 0.2, "latency_p50": 0.5, "latency_p95": 0.6, "latency_p99": 0.7,
    }  # fmt: skip
    settings = {"engine": "small", "requests": 8, "tokens": 64, "repeats": 3, "kinds": "chat"}
    levels = [level, {**level, "front": "triton", "tokens_per_second": 95.0}]
    text = report.front_ends({"settings": settings, "levels": levels}, ABOUT)
    assert "| 4 | triton | 95.0 | -5.0 % | 100, 200 | 500, 600, 700 |" in text
    assert "2 threads of an some CPU" in text


def test_a_prediction_is_summed_up_with_its_exceptions() -> None:
    ways = {"in the prompt": 10.0, "as the prediction": 12.0, "both": 13.0}
    of = {"tokens_per_round": ways, "speedup": ways, "cases": 30, "slower": 4, "worst": 0.111}
    result = {"curve": "gpu-modelled", "kinds": {"code_edit": of, "json_rewrite": {**of, "slower": 0, "worst": 0.0}}}
    summary = report.prediction_summary(result, ABOUT)
    assert "12.0 tokens per round against 10.0" in summary
    assert "4 of 30 single cases slower, the worst by 11%" in summary
    assert "| code edit | 10.00 (10.00x) | 12.00 (12.00x) | 13.00 (13.00x) | 4 of 30 |" in report.prediction(result)


def test_a_draft_model_is_summed_up() -> None:
    ways = ("plain", "copies", "chains", "both", "chains, gated", "both, gated")
    row = {
        "layers": 6, "kind": "prose", "draft_step": 0.35, "acceptance": 0.04, "differing": 0, "tokens": 10,
        "tokens_per_round": dict.fromkeys(ways, 1.0), "speedup": dict.fromkeys(ways, 0.9),
    }  # fmt: skip
    modelled = [
        {"workload": "prose (model)", "p": p, "copies": 1.3, "chains": 1 + p, "both": 2 * p} for p in (0.5, 0.85)
    ]
    result = {"curve": "gpu-modelled", "draft_step": 0.0625, "measured": [row], "modelled": modelled}
    summary = report.draft_model_summary(result, ABOUT)
    assert "| prose | 1.30 | 1.50 | 1.00 | 1.85 | 1.70 |" in summary
    assert "(6 of 30), untrained for it, have 4% of their drafts accepted at 0.35 of a step" in summary
    assert "beside copies 1.00 of copies alone" in summary


def test_the_gains_of_more_rows_in_a_plan() -> None:
    profile = {"label": "lone", "activation_bytes": 9_800_000}
    build = {"max_drafts": 8, "plan_bytes": 362_200_000, "runtime": "tensorrt_rtx 1", "profiles": [profile]}
    text = report.tensorrt_rows({"recipe": "r.yaml", "layers": 30, "builds": [build]}, {})
    assert "| 8 | 362.2 | 9.8 |" in text
