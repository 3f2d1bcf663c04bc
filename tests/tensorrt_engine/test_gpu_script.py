"""What ``benchmarks.gpu_tensorrt`` compares holds where it can run without a GPU, and a wrong engine is noticed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtserve.executor import tensorrt_cuda
from trtserve.executor.base import StepInput, StepOutput

from .models import config_of
from .test_executor import Pair


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    module = importlib.import_module("benchmarks.gpu_tensorrt")
    monkeypatch.setattr(module, "OUTPUT", 6)
    monkeypatch.setattr(module, "REPEATS", 1)
    return module


@pytest.fixture
def pair(trt: Any) -> Any:
    made = Pair(trt, "interpreter", lambda gpu, info: pytest.fail("no fake GPU here"), config_of("llama"))
    yield made
    made.close()


PROMPTS = [[3, 9, 4, 3, 9, 4, 8], [5, 6, 7, 5], [20, 21, 22, 23, 24, 25]]


def test_every_comparison_holds(script: Any, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert not script.compare(pair.tensorrt, pair.torch, PROMPTS, 1e-3)
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
    assert script.compare(pair.tensorrt, pair.torch, PROMPTS, 1e-3)


@pytest.mark.skipif(tensorrt_cuda.missing_gpu() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_ends(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_tensorrt"])
    assert script.main() == 2
    assert "GPU" in capsys.readouterr().err
