"""``trtbuild triton``: what it writes, what it replaces, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtbuild import output_dir
from trtbuild.cli import run
from trtbuild.triton.config import ModelConfig
from trtserve import engine_dir
from trtserve.triton.placement import Placement, PlacementError, parse_gpu_sets

from .tiny import write_tiny_engine

CONTRACT = yaml.safe_load((Path(__file__).parent / "contract" / "tensorrt_llm.yaml").read_text())
TENSOR = re.compile(r'\{ name: "(\w+)" data_type: (\w+) dims: \[ (-?\d+) \]( optional: true)? \}')


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_tiny_engine(tmp_path / "engine")


def retarget(engine: Path, target: str, recipe: dict[str, Any]) -> None:
    """Make the manifest say that another target built the directory, with this resolved recipe."""
    (engine / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    manifest = engine_dir.read(engine)
    engine_dir.write(engine, manifest.model_copy(update={"target": target}))


def write(engine: Path, *options: str) -> Path:
    repository = engine.parent / "models"
    assert run(["triton", str(engine), "-o", str(repository), *options]) == 0
    return repository


def config_of(repository: Path, name: str = "tensorrt_llm") -> str:
    return (repository / name / "config.pbtxt").read_text()


def test_inputs_and_outputs_are_those_of_tensorrt_llm_and_more() -> None:
    text = ModelConfig("m").to_pbtxt()
    inputs, outputs = text.split("output [")
    for part, key in ((inputs, "inputs"), (outputs, "outputs")):
        written = {name: (kind, int(size), bool(opt)) for name, kind, size, opt in TENSOR.findall(part)}
        for name, (kind, size, *optional) in CONTRACT[key].items():
            if name in CONTRACT["left_out"]:
                assert name not in written
            else:
                assert written[name] == (kind, size, *(optional or [False]))


def test_a_model_is_a_config_a_thin_module_and_a_link(engine: Path) -> None:
    repository = write(engine)
    model = repository / "tensorrt_llm"
    assert sorted(p.name for p in repository.iterdir()) == ["tensorrt_llm"]
    assert (model / "1" / "engine").readlink() == engine.resolve()
    code = (model / "1" / "model.py").read_text()
    compile(code, "model.py", "exec")
    assert "from trtserve.triton.backend import TritonPythonModel" in code
    assert "decoupled: true" in config_of(repository)


def test_a_copy_is_the_whole_engine(engine: Path) -> None:
    copy = write(engine, "--copy") / "tensorrt_llm" / "1" / "engine"
    assert not copy.is_symlink()
    assert engine_dir.load(copy) == engine_dir.load(engine)


def test_writing_again_replaces_and_leaves_other_models(engine: Path) -> None:
    repository = write(engine)
    other = repository / "other"
    other.mkdir()
    assert run(["triton", str(engine), "-o", str(repository), "--no-decoupled"]) == 0
    assert "decoupled: false" in config_of(repository)
    assert sorted(p.name for p in repository.iterdir()) == ["other", "tensorrt_llm"]


def test_a_model_of_others_is_not_replaced_without_force(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = write(engine)
    config = repository / "tensorrt_llm" / "config.pbtxt"
    config.write_text('name: "tensorrt_llm"\n')
    assert run(["triton", str(engine), "-o", str(repository)]) == 6
    assert "--force" in capsys.readouterr().err
    assert config.read_text() == 'name: "tensorrt_llm"\n'
    assert run(["triton", str(engine), "-o", str(repository), "--force"]) == 0
    assert "backend" in config.read_text()


def test_a_failed_write_leaves_what_was_there(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = write(engine)
    before = config_of(repository)

    def full(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_dir, "_flush", full)
    with pytest.raises(OSError, match="No space"):
        run(["triton", str(engine), "-o", str(repository), "--no-decoupled"])
    assert config_of(repository) == before
    assert [p.name for p in repository.iterdir()] == ["tensorrt_llm"]


def test_instances_and_gpus(engine: Path) -> None:
    text = config_of(write(engine, "--instances", "2", "--gpus", "3", "--gpus", "5"))
    assert "count: 4 kind: KIND_CPU" in text
    assert 'key: "gpu_device_ids" value { string_value: "3;3;5;5" }' in text
    assert r"\"device\": \"cuda:0\"" in text


def test_a_torch_engine_is_on_the_cpu_unless_told(engine: Path) -> None:
    text = config_of(write(engine, "--instances", "3"))
    assert "count: 3 kind: KIND_CPU" in text
    assert "gpu_device_ids" not in text and "device" not in text.replace("gpu_device_ids", "")


def test_gpus_come_from_the_recipe(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retarget(engine, "tensorrt_llm", {"target": "tensorrt_llm", "tensorrt_llm": {"tensor_parallel_size": 2}})
    assert 'value { string_value: "0,1" }' in config_of(write(engine))
    assert 'value { string_value: "0,1;2,3" }' in config_of(write(engine, "--gpus", "0,1", "--gpus", "2,3"))
    assert run(["triton", str(engine), "-o", str(engine.parent / "models"), "--gpus", "0"]) == 2
    assert "the engine spans 2" in capsys.readouterr().err


DEPLOYMENT = {
    "model_name": "code", "version": 3, "instances": 2, "kind": "gpu", "gpus": [3, 5], "decoupled": False,
    "tenant_parameter": "x-tenant", "require_tenant": True, "max_queue": 9, "threads": 2,
}  # fmt: skip


def test_the_recipe_says_how_the_engine_is_deployed(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retarget(engine, "torch", {"target": "torch", "triton": DEPLOYMENT})
    repository = write(engine, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["version"], told["instances"], told["gpus"]) == ("code", 3, 4, [[3], [5]])
    head = config_of(repository, "code").partition("input [")[0].splitlines()
    assert head[1:] == [
        'name: "code"',
        'backend: "python"',
        "max_batch_size: 0",
        "model_transaction_policy { decoupled: false }",
        "instance_group [ { count: 4 kind: KIND_CPU } ]",
        'parameters { key: "tenant_parameter" value { string_value: "x-tenant" } }',
        'parameters { key: "require_tenant" value { string_value: "true" } }',
        'parameters { key: "overrides" value { string_value: '
        r'"{\"max_queue\": 9, \"threads\": 2, \"device\": \"cuda:0\"}" } }',
        'parameters { key: "gpu_device_ids" value { string_value: "3;3;5;5" } }',
    ]
    assert sorted(p.name for p in (repository / "code").iterdir()) == ["3", "config.pbtxt"]


def test_flags_overrule_the_recipe(engine: Path) -> None:
    retarget(engine, "torch", {"target": "torch", "triton": DEPLOYMENT})
    options = ("--model-name", "m", "--model-version", "7", "--instances", "1", "--kind", "cpu", "--decoupled")
    settings = ("--tenant-parameter", "who", "--no-require-tenant", "--set", "max_queue=4", "--set", "threads=1")
    repository = write(engine, *options, *settings)
    text = config_of(repository, "m")
    assert (repository / "m" / "7" / "engine").is_symlink()
    assert "decoupled: true" in text and "count: 1 kind" in text and "gpu_device_ids" not in text
    assert r'"{\"max_queue\": 4, \"threads\": 1}"' in text
    assert 'string_value: "who"' in text and 'string_value: "false"' in text
    text = config_of(write(engine, "--gpus", "1"), "code")
    assert 'string_value: "1;1"' in text and "count: 2 kind" in text


def test_the_recipes_gpus_are_dealt_out_to_engines_that_span_several(engine: Path) -> None:
    recipe = {
        "target": "tensorrt_llm",
        "tensorrt_llm": {"tensor_parallel_size": 2},
        "triton": {"gpus": [4, 5, 6, 7]},
    }
    retarget(engine, "tensorrt_llm", recipe)
    text = config_of(write(engine))
    assert 'value { string_value: "4,5;6,7" }' in text and "count: 2 kind" in text


def test_a_torch_engine_goes_to_the_gpu_when_asked(engine: Path) -> None:
    retarget(engine, "torch", {"target": "torch", "triton": {"kind": "gpu"}})
    text = config_of(write(engine))
    assert 'key: "gpu_device_ids" value { string_value: "0" }' in text and r"\"cuda:0\"" in text


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"triton": {"instances": 0}}, "triton.instances: Input should be greater than or equal to 1"),
        ({"triton": {"colour": "red"}}, "triton.colour: Extra inputs are not permitted"),
        ([], "is no mapping"),
    ],
)
def test_a_recipe_that_trtbuild_did_not_write_is_refused(
    engine: Path, capsys: pytest.CaptureFixture[str], recipe: Any, message: str
) -> None:
    retarget(engine, "torch", recipe)
    assert run(["triton", str(engine), "-o", str(engine.parent / "models")]) == 6
    error = capsys.readouterr().err
    assert "recipe.yaml: " in error and message in error


def test_a_tensorrt_engine_computes_on_gpus_alone(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retarget(engine, "tensorrt", {"target": "tensorrt"})
    assert run(["triton", str(engine), "-o", str(engine.parent / "models"), "--kind", "cpu"]) == 2
    assert "--kind: given cpu, but target tensorrt computes on GPUs; allowed: auto, gpu" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["threads=4", "device=cuda:1", "exact_verify=true", "cost_curve=gpu-modelled"])
def test_what_tensorrt_llm_would_refuse_is_refused_here(
    engine: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    retarget(engine, "tensorrt_llm", {"target": "tensorrt_llm"})
    assert run(["triton", str(engine), "-o", str(engine.parent / "models"), "--set", setting]) == 2
    error = capsys.readouterr().err
    assert setting.partition("=")[0] in error and "target tensorrt_llm" in error


def test_a_tensorrt_engine_is_on_the_first_gpu(engine: Path) -> None:
    retarget(engine, "tensorrt", {"target": "tensorrt"})
    assert 'value { string_value: "0" }' in config_of(write(engine))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model-name", "a/b"), "--model-name 'a/b': allowed"),
        (("--model-name", ".a"), "allowed: letters"),
        (("--gpus", "x"), "is no list of GPUs"),
        (("--gpus", "1,1"), "names a GPU twice"),
        (("--set", "threads"), "allowed: NAME=VALUE"),
        (("--set", "threads=none"), "threads: Input should be a valid integer"),
        (("--set", "colour=red"), "colour is not an override"),
        (("--set", "prompt_lookup_max_drafts=64"), "build it again"),
        (("--instances", "0"), "1<=x<=128"),
        (("--model-version", "0"), "1<=x<=2147483647"),
        (("--kind", "tpu"), "'auto', 'cpu', 'gpu'"),
        (("--kind", "cpu", "--gpus", "0"), "--gpus: is given with kind cpu; allowed: no gpus, or kind auto or gpu"),
    ],
)
def test_refusals(engine: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str) -> None:
    assert run(["triton", str(engine), "-o", str(engine.parent / "models"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (engine.parent / "models").exists()


def test_an_altered_engine_is_refused(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = engine / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert run(["triton", str(engine), "-o", str(engine.parent / "models")]) == 6
    assert "other content than was built" in capsys.readouterr().err


def test_json_says_what_was_written(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(engine, "--json", "--model-name", "m")
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "written" and told["name"] == "m" and told["decoupled"] is True


def test_an_instance_sees_its_own_gpus() -> None:
    parameters = {"gpu_device_ids": "0,1;2,3"}
    assert Placement.of(parameters, "m_0_1").environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert Placement.of({}, "m_0_1").environment == {}
    with pytest.raises(PlacementError, match="number 2"):
        Placement.of(parameters, "m_0_2")
    assert parse_gpu_sets(" 0, 1 ;2") == ((0, 1), (2,))
