"""A Triton repository of a tensorrt_llm engine: it spans the recipe's GPUs, and what its model loads works."""

from __future__ import annotations

from pathlib import Path

from trtbuild import cli
from trtserve.loading import load_engine

from . import fake, recipes


def test_the_repositorys_engine_loads(checkpoint: Path, tmp_path: Path) -> None:
    section = {"tensor_parallel_size": 2}
    out = recipes.build(tmp_path, recipes.recipe("tensorrt_llm", checkpoint, tensorrt_llm=section))
    repository = tmp_path / "repository"
    assert cli.run(["triton", str(out), "-o", str(repository), "--gpus", "0,1"]) == 0
    (config,) = repository.glob("*/config.pbtxt")
    assert "0,1" in config.read_text() and "cuda:0" not in config.read_text()
    (engine_json,) = repository.glob("*/1/*/engine.json")
    with fake.installed("1.3"):
        engine, _ = load_engine(engine_json.parent)
        engine.close()
