"""What ``benchmarks.gpu_tensorrt`` compares holds where it can run without a GPU, and a wrong engine is noticed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtserve.executor import tensorrt_cuda
from trtserve.executor.base import StepInput, StepOutput
from trtserve.facade import Engine

from .models import config_of
from .test_engine import Numbers, engine_of, tensorrt_executor, torch_executor
from .test_executor import Pair

__all__ = ["engine_of"]  # a fixture


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    module = importlib.import_module("benchmarks.gpu_tensorrt")
    monkeypatch.setattr(module, "OUTPUT", 6)
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "WARM_SECONDS", 0.0)
    return module


@pytest.fixture
def pair(trt: Any) -> Any:
    made = Pair(trt, "interpreter", lambda gpu, info: pytest.fail("no fake GPU here"), config_of("llama"))
    yield made
    made.close()


#: The interpreter computes in float32 what the torch executor does.
EXACT = SimpleNamespace(most=1e-3, mean=1e-3)
PROMPTS = [[3, 9, 4, 3, 9, 4, 8], [5, 6, 7, 5], [20, 21, 22, 23, 24, 25]]


def test_every_comparison_holds(script: Any, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert not script.compare(pair.tensorrt, pair.torch, PROMPTS, EXACT)
    assert "FAILED" not in capsys.readouterr().out
    figures = script.time_tiers(pair.tensorrt, contexts=(4,))
    assert {(f["tier"], f["batch"], f["rows"]) for f in figures} == {
        ("lone", 1, 1),
        ("lone", 1, 6),
        ("copy", 4, 1),
        ("copy", 4, 3),
        ("full", 6, 1),
    }


def test_a_wrong_engine_is_noticed(script: Any, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    step = pair.tensorrt.step

    def later(batch: StepInput) -> StepOutput:
        return step(batch._replace(lengths=batch.lengths + np.int32(1)))

    monkeypatch.setattr(pair.tensorrt, "step", later)
    assert script.compare(pair.tensorrt, pair.torch, PROMPTS, EXACT)


def test_near_ties_may_be_decided_either_way_and_nothing_else(script: Any) -> None:
    rows = np.log(np.array([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4]], np.float32))
    assert script.gap_where_they_part([0, 1], [0, 1], rows) == 0
    assert script.gap_where_they_part([0, 1], [1, 2], rows) == pytest.approx(np.log(0.5 / 0.4), rel=1e-5)
    assert script.gap_where_they_part([0, 1], [0, 0], rows) == pytest.approx(np.log(0.5 / 0.1), rel=1e-5)


@pytest.mark.parametrize("wrong", [False, True])
def test_texts_with_lookup_on_and_off_are_compared(
    script: Any, trt: Any, engine_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    torch, executor = torch_executor(trt), tensorrt_executor(trt)
    if wrong:
        step = executor.step
        monkeypatch.setattr(executor, "step", lambda batch: _one_off(step(batch), len(batch.tokens) > 2))
    engine = Engine(engine_of(lambda _: executor, lookup=True), Numbers())
    failures = script.Failures()
    try:
        piece = [4, 9, 17, 30]
        figures = script.compare_texts(engine, torch, [piece * 5, piece[:3] * 6], EXACT, failures)
    finally:
        engine.close()
        torch.close()
    assert bool(failures) == wrong
    assert figures["tokens"] == 12
    assert figures["lookup_tokens_per_second"] > 0


def _one_off(out: StepOutput, drafts: bool) -> StepOutput:
    """In a round with drafts every target is another token, and nothing is accepted."""
    return out._replace(targets=(out.targets + 1) % np.int32(61), accepted=out.accepted * 0) if drafts else out


@pytest.mark.skipif(tensorrt_cuda.missing_gpu() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_ends(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_tensorrt"])
    assert script.main() == 77
    assert capsys.readouterr().err.startswith("not run: no NVIDIA")


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="full TensorRT is installed")
@pytest.mark.parametrize(
    ("capability", "asked", "message"),
    [
        (
            (9, 0),
            None,
            "Fake GPU, compute capability 90: TensorRT-RTX does not run on it, and runtime tensorrt is not ",
        ),
        ((9, 0), "tensorrt_rtx", "TensorRT-RTX does not run on Fake GPU, compute capability 90; full TensorRT does"),
    ],
)
def test_a_gpu_without_its_runtime_is_skipped_in_one_line(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    capability: tuple[int, int],
    asked: str | None,
    message: str,
) -> None:
    gpu = SimpleNamespace(name="Fake GPU", compute_capability=capability, set_current=lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace(Device=lambda index: gpu))
    monkeypatch.setattr(tensorrt_cuda, "missing_gpu", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_tensorrt", *(["--runtime", asked] if asked else [])])
    assert script.main() == 77
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"not run: {message}")


SECTIONS = ("tests marked gpu", "acceptance kernels", "TensorRT")


@pytest.mark.parametrize(
    ("statuses", "code", "last"),
    [
        ((0, 0, 0), 0, "all sections that ran succeeded"),
        ((0, 0, 77), 0, "all sections that ran succeeded"),
        ((1, 0, 77), 1, "failed: tests marked gpu"),
        ((0, 0, 1), 1, "failed: TensorRT"),
    ],
)
def test_the_script_goes_on_after_a_section(tmp_path: Path, statuses: tuple[int, ...], code: int, last: str) -> None:
    """With a stand-in for Python that ends as told."""
    stand_in = tmp_path / "python"
    cases = dict(zip(("pytest", "benchmarks.gpu_kernels", "benchmarks.gpu_tensorrt"), statuses, strict=True))
    lines = "".join(f'*"-m {module} "*) exit {status} ;;\n' for module, status in cases.items())
    stand_in.write_text(f'#!/bin/sh\ncase "$* " in\n*tensorrt_llm*) exit 1 ;;\n{lines}esac\n')
    stand_in.chmod(0o755)
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"
    done = subprocess.run(
        ["bash", str(script), str(tmp_path / "out")],
        env={**os.environ, "PYTHON": str(stand_in)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    for section, status in zip(SECTIONS, statuses, strict=True):
        assert f"== {section}\n" in done.stdout
        assert (f"== {section} FAILED" in done.stdout) == (status == 1)
        assert (f"== {section}: nothing to run on, skipped" in done.stdout) == (status == 77)
    assert (done.stdout + done.stderr).rstrip().splitlines()[-1].startswith(last)
