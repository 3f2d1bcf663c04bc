"""``drafter: draft_model`` at build time: a second checkpoint in the engine directory, or a refusal that says why."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from trtbuild import cli
from trtbuild.draft_model import vocabulary_difference
from trtserve import Engine, engine_dir
from trtserve.executor import calibrate
from trtserve.settings import Limits, plan_draft_tiers

from .conftest import RECIPE, write_checkpoint

DRAFTING = (
    RECIPE
    + """\
speculative: {drafter: draft_model, num_drafts: 3}
draft_model: {checkpoint: draft-llama, dtype: float16}
"""
)


@pytest.fixture
def pair(workspace: Path) -> Path:
    """A working directory with two checkpoints of one tokenizer, and a recipe that names both."""
    write_checkpoint(workspace / "draft-llama", seed=5)
    (workspace / "tiny.yaml").write_text(DRAFTING)
    return workspace


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(args)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_engine_holds_both_models(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tiny.yaml", "-o", "e", "--no-measure")[0] == 0
    manifest = engine_dir.load(pair / "e")
    assert "draft_model/weights.safetensors" in manifest.files
    record = manifest.draft_model
    assert record is not None and record.cost_curve is None
    assert record.model.dtype == "float16" and manifest.model.dtype == "float32"
    assert record.weights_digest == manifest.files["draft_model/weights.safetensors"].sha256
    assert record.weights_digest != manifest.weights_digest
    stored = load_file(pair / "e" / "draft_model" / "weights.safetensors")
    original = load_file(pair / "draft-llama" / "model.safetensors")
    assert (stored["layers.0.q"] == original["model.layers.0.self_attn.q_proj.weight"].half()).all()
    lookup = manifest.speculative.prompt_lookup
    assert lookup is not None
    assert {t.name: t.rows for t in manifest.tiers} == {
        "lone": max(lookup.max_drafts, 3) + 1,
        "copy": max(lookup.batch_max_drafts, 3) + 1,
        "full": 4,
        "prefill": 16,
    }
    code, out, _ = run(capsys, "inspect", "e")
    assert code == 0 and "draft model" in out and record.weights_digest[:16] in out

    with Engine.load(pair / "e", threads=1) as engine:
        done = engine.generate([5, 6, 7, 8], max_tokens=12, temperature=0, ignore_eos=True)
        assert done.finish.stats.sources["model"].proposed > 0
        assert len(done.tokens) == 12


def test_building_again_depends_on_both_checkpoints(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tiny.yaml", "-o", "e", "--no-measure")[0] == 0
    assert "nothing to do" in run(capsys, "tiny.yaml", "-o", "e", "--no-measure")[1]
    before = engine_dir.read(pair / "e")
    for path in (pair / "draft-llama").iterdir():
        path.unlink()
    (pair / "draft-llama").rmdir()
    write_checkpoint(pair / "draft-llama", seed=6)
    assert "built in" in run(capsys, "tiny.yaml", "-o", "e", "--no-measure")[1]
    after = engine_dir.read(pair / "e")
    assert after.inputs_digest != before.inputs_digest
    assert after.weights_digest == before.weights_digest and after.model_key == before.model_key


def test_both_costs_are_measured(
    pair: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    briefly = functools.partial(calibrate.measure, contexts=(8,), repeats=1)
    monkeypatch.setattr(calibrate, "measure", briefly)
    assert run(capsys, "tiny.yaml", "-o", "e")[0] == 0
    manifest = engine_dir.load(pair / "e")
    assert manifest.cost_curve is not None and manifest.draft_model is not None
    curve = manifest.draft_model.cost_curve
    assert curve is not None and curve.device == "cpu"
    assert {(p.batch, p.rows) for p in curve.points} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_plan_counts_the_draft_model(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tiny.yaml", "--plan", "--json")
    with_draft = json.loads(out)["plan"]
    assert code == 0
    (pair / "tiny.yaml").write_text(RECIPE)
    alone = json.loads(
        run(capsys, "tiny.yaml", "--plan", "--json", "--set", "speculative.prompt_lookup.batch_max_drafts=3")[1]
    )["plan"]
    draft = with_draft["draft_model"]
    assert alone["draft_model"] is None
    assert draft["weights_bytes"] * 2 == alone["weights_bytes"], "float16 against float32, the same shape"
    assert draft["kv_bytes_per_token"] == alone["kv_bytes_per_token"]
    own = with_draft["weights_bytes"] + with_draft["kv_bytes"] + with_draft["working_bytes"]
    kv = draft["kv_bytes_per_token"] * with_draft["max_seq_len"] * with_draft["slots"]
    assert with_draft["total_bytes"] == own + draft["weights_bytes"] + kv + draft["working_bytes"]
    (pair / "tiny.yaml").write_text(DRAFTING)
    assert "draft model" in run(capsys, "tiny.yaml", "--plan")[1]
    code, _, err = run(capsys, "tiny.yaml", "--check", "--memory", str(own))
    assert code == 4 and "draft model" in err


def test_draft_tiers_have_room_for_a_draft_and_its_successor() -> None:
    tiers = {t.name: (t.batch, t.rows) for t in plan_draft_tiers(Limits(max_batch_size=3, prefill_chunk=64))}
    assert tiers == {"lone": (1, 2), "full": (3, 2), "prefill": (1, 64)}


def test_another_tokenizer_is_refused_with_what_differs(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pair / "draft-llama" / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    a, b = (next(t for t, i in vocab.items() if i == at) for at in (7, 8))
    vocab[a], vocab[b] = 8, 7
    path.write_text(json.dumps(data))
    for action in (["--check"], ["--plan"], ["-o", "e", "--no-measure"]):
        code, _, err = run(capsys, "tiny.yaml", *action)
        assert code == 2
        assert "tiny.yaml:9" in err or "tiny.yaml:8" in err
        assert "draft_model.checkpoint" in err and "token 7 is" in err and "token 8 is" in err and "allowed" in err
    assert not (pair / "e").exists()


def test_a_draft_model_of_fewer_positions_is_refused(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pair / "draft-llama" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 48}))
    code, _, err = run(capsys, "tiny.yaml", "--check")
    assert code == 2 and "knows 48 positions; allowed: at least the 64" in err


def test_a_missing_draft_checkpoint_is_a_checkpoint_error(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "tiny.yaml", "--check", "--set", "draft_model.checkpoint=nowhere")
    assert code == 3 and "nowhere" in err


def test_differences_in_words() -> None:
    assert vocabulary_difference({"a": 0, "b": 1}, {"a": 0, "b": 1}) == ""
    assert vocabulary_difference({"a": 0, "b": 1}, {"a": 0}) == '1 tokens, not 2; token 1 is none, not "b"'
    many = {f"t{i}": i for i in range(9)}
    other = {f"u{i}": i for i in range(9)}
    assert vocabulary_difference(many, other).endswith(" and 6 more")
