"""``target: tensorrt_llm``: what trtbuild writes, what the capacity plan decides, what is refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny.checkpoint import write_checkpoint
from trtbuild import builder, capacity, cli
from trtbuild.errors import BuildError, RecipeError
from trtbuild.recipe import load_recipe
from trtserve import Engine, engine_dir
from trtserve.engine.tensorrt_llm import versions
from trtserve.engine.tensorrt_llm.recorded import TensorRTLLMInfo
from trtserve.engine_dir import EngineDirError
from trtserve.executor.base import ExecutorError
from trtserve.overrides import OverrideError

from . import fake, recipes
from .conftest import Open

ROOT = Path(__file__).parents[2]
HYBRID = {"drafter": "mtp", "num_drafts": 4, "prompt_lookup": {"max_drafts": 4, "batch_max_drafts": 3, "min_match": 6}}


def write(path: Path, checkpoint: Path, **sections: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    recipe = path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(recipes.recipe("tensorrt_llm", checkpoint, **sections)))
    return recipe


def args_of(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((out / "llm_args.yaml").read_text())
    return loaded


def test_engine_directory(checkpoint: Path, tmp_path: Path) -> None:
    section = {
        "tensor_parallel_size": 2,
        "attn_backend": "FLASHINFER",
        "kv_cache": {"free_gpu_memory_fraction": 0.5, "dtype": "fp8", "tokens_per_block": 64},
        "cuda_graph": {"batch_sizes": [1, 2, 4], "enable_padding": True},
        "chunked_prefill": True,
        "lora": {"adapters": {"a": str(tmp_path)}, "max_lora_rank": 8},
        "guided_decoding": "xgrammar",
    }
    out = recipes.build(tmp_path, recipes.recipe("tensorrt_llm", checkpoint, tensorrt_llm=section))
    manifest = engine_dir.load(out)
    info = TensorRTLLMInfo.of(out, manifest)
    assert args_of(out) == {
        "model": str(checkpoint),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "max_batch_size": 4,
        "max_seq_len": 256,
        # Four sequences of 1 + 8 rows, and a chunk of a prompt.
        "max_num_tokens": 4 * 9 + 32,
        "enable_chunked_prefill": True,
        "attn_backend": "FLASHINFER",
        "kv_cache_config": {
            "enable_block_reuse": True,
            "enable_partial_reuse": True,
            "free_gpu_memory_fraction": 0.5,
            "dtype": "fp8",
            "tokens_per_block": 64,
        },
        "cuda_graph_config": {"batch_sizes": [1, 2, 4], "enable_padding": True},
        "disable_overlap_scheduler": True,
        "guided_decoding_backend": "xgrammar",
        "enable_lora": True,
        "lora_config": {"lora_dir": [str(tmp_path)], "max_lora_rank": 8, "max_loras": 4, "max_cpu_loras": 16},
    }
    lookup = yaml.safe_load((out / "lookup.yaml").read_text())
    assert (lookup["max_draft_len"], lookup["max_concurrency"], lookup["max_num_tokens"]) == (8, 4, 68)
    assert lookup["prompt_lookup"]["ngram"] == 2
    assert (info.version, info.drafting, info.max_draft_len, info.max_concurrency) == ("1.3", "trtlookup", 8, 4)
    assert info.adapters == {"a": str(tmp_path)}
    assert info.checkpoint.reference == str(checkpoint) and set(info.checkpoint.files) >= {"model.safetensors"}
    assert (out / "tokenizer" / "tokenizer.json").is_file() and not (out / "weights.safetensors").exists()
    # The fake takes exactly these arguments, so their names are the contract's.
    with fake.installed("1.3") as package:
        known = fake.load("1.3")["modules"]["tensorrt_llm"]["classes"]["LLM"]["keywords"]
        named = {"model", "skip_tokenizer_init", "dtype", "tensor_parallel_size"}
        assert set(args_of(out)) <= {*known, *named}
        package.llmapi.LoraConfig(**args_of(out)["lora_config"])


def test_nothing_to_do_a_second_time(checkpoint: Path, tmp_path: Path) -> None:
    described = recipes.recipe("tensorrt_llm", checkpoint)
    recipes.build(tmp_path, described)
    prepared = builder.prepare(load_recipe(tmp_path / "recipe.yaml"))
    assert builder.build(prepared, tmp_path / "engine", measure=False).status == "up_to_date"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"speculative": HYBRID}, {"decoding_type": "MTP", "max_draft_len": 4, "sa_config": {"threshold": 6}}),
        (
            {"speculative": {**HYBRID, "drafter": "eagle3"}, "tensorrt_llm": {"speculative_model": "/draft"}},
            {
                "decoding_type": "Eagle3",
                "max_draft_len": 4,
                "speculative_model": "/draft",
                "sa_config": {"threshold": 6},
            },
        ),
        (
            {"speculative": {"drafter": "mtp", "num_drafts": 3, "prompt_lookup": None}},
            {"decoding_type": "MTP", "max_draft_len": 3},
        ),
        (
            {"tensorrt_llm": {"copies": "ngram"}},
            {
                "decoding_type": "NGram",
                "max_matching_ngram_size": 2,
                "is_public_pool": False,
                "max_draft_len": 8,
                "max_concurrency": 4,
            },
        ),
        (
            {"tensorrt_llm": {"copies": "sa"}},
            {
                "decoding_type": "SA",
                "max_matching_ngram_size": -1,
                "enable_global_pool": False,
                "max_draft_len": 8,
                "max_concurrency": 4,
            },
        ),
        ({"speculative": {"prompt_lookup": None}}, None),
        ({}, None),
    ],
)
def test_speculative_config(
    sections: dict[str, Any], expected: dict[str, Any] | None, checkpoint: Path, tmp_path: Path
) -> None:
    out = recipes.build(tmp_path, recipes.recipe("tensorrt_llm", checkpoint, **sections))
    config = args_of(out).get("speculative_config")
    assert config == expected
    if config is not None:
        with fake.installed("1.3") as package:
            kinds = {"MTP": "MTPDecodingConfig", "Eagle3": "Eagle3DecodingConfig"}
            kinds |= {"NGram": "NGramDecodingConfig", "SA": "SADecodingConfig"}
            getattr(package.llmapi, kinds[config["decoding_type"]])(**config)
            package.llmapi.SAEnhancerConfig(**config.get("sa_config", {}))


@pytest.mark.parametrize(
    ("sections", "key", "reason"),
    [
        ({"speculative": {"exact_verify": True}}, "speculative.exact_verify", "rounding"),
        ({"tensorrt_llm": {"max_num_tokens": 35}}, "tensorrt_llm.max_num_tokens", "at least 36"),
        (
            {"tensorrt_llm": {"max_num_tokens": 100, "chunked_prefill": False}},
            "tensorrt_llm.max_num_tokens",
            "chunked_prefill is off",
        ),
        ({"tensorrt_llm": {"quantization": "w8a16"}}, "tensorrt_llm.quantization", "quantised checkpoint"),
        ({"tensorrt_llm": {"kv_cache": {"tokens_per_block": 48}}}, "tensorrt_llm.kv_cache.tokens_per_block", "32"),
        (
            {"speculative": {**HYBRID, "prompt_lookup": {**HYBRID["prompt_lookup"], "shared_cache": {"mb": 8}}}},
            "speculative.prompt_lookup.shared_cache.mb",
            "without regard to tenant",
        ),
        (
            {"speculative": {"prompt_lookup": {"shared_cache": {"mb": 8}}}, "tensorrt_llm": {"copies": "sa"}},
            "speculative.prompt_lookup.shared_cache.mb",
            "own drafter",
        ),
        (
            {"speculative": {"drafter": "mtp", "num_drafts": 4}},
            "speculative.prompt_lookup.max_drafts",
            "up to its num_drafts 4",
        ),
        ({"speculative": HYBRID, "tensorrt_llm": {"copies": "ngram"}}, "tensorrt_llm.copies", "drafter none"),
        (
            {"speculative": {**HYBRID, "drafter": "eagle3"}},
            "tensorrt_llm.speculative_model",
            "speculative.drafter is eagle3",
        ),
        ({"tensorrt_llm": {"speculative_model": "/d"}}, "tensorrt_llm.speculative_model", "drafter eagle3"),
        ({"model": {"checkpoint": "m.gguf"}}, "model.checkpoint", "Hugging Face"),
        ({"speculative": HYBRID, "tensorrt_llm": {"version": "1.2"}}, "speculative.drafter", "version 1.2"),
        (
            {"tensorrt_llm": {"version": "1.2", "tensor_parallel_size": 2}},
            "tensorrt_llm.tensor_parallel_size",
            "given 2; allowed with version 1.2: 1",
        ),
        ({"tensorrt_llm": {"version": "1.2", "lora": {}}}, "tensorrt_llm.lora", "given a section"),
        ({"tensorrt_llm": {"version": "1.1"}}, "tensorrt_llm.version", "1.2"),
    ],
)
def test_refused_with_the_reason(
    sections: dict[str, Any], key: str, reason: str, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe(write(tmp_path, checkpoint, **sections))
    assert [(p.key, True) for p in refused.value.problems] == [(key, True)]
    assert reason in refused.value.problems[0].message


def test_a_gguf_checkpoint_is_refused_when_it_is_found(checkpoint: Path, tmp_path: Path) -> None:
    two = tmp_path / "two"
    two.mkdir()
    with pytest.raises(Exception, match="config"):
        recipes.build(tmp_path, recipes.recipe("tensorrt_llm", two))


def test_plan_counts_padded_rows_and_gpus(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write(tmp_path, checkpoint)

    def plan(*overrides: str) -> capacity.CapacityPlan:
        return builder.prepare(load_recipe(recipe, overrides), 1 << 30).plan

    one, two = plan(), plan("tensorrt_llm.tensor_parallel_size=2")
    assert two.weights_bytes == -(-one.weights_bytes // 2) and two.kv_bytes_per_token * 2 == one.kv_bytes_per_token
    assert plan("tensorrt_llm.kv_cache.dtype=fp8").kv_bytes_per_token * 4 == one.kv_bytes_per_token
    tiers = {t.name: t for t in one.tiers}
    # A batch of four is verified with the rows of the longest copy, not with batch_max_drafts'.
    assert tiers["copy"].logits_bytes == 4 * tiers["lone"].logits_bytes
    assert cli.run([str(recipe), "--plan", "--memory", "1GiB"]) == 0
    assert "one more draft" in capsys.readouterr().out


def test_recipes_that_ship_are_correct() -> None:
    found = sorted((ROOT / "recipes").glob("*-trtllm.yaml"))
    assert len(found) >= 2
    for path in found:
        recipe = load_recipe(path).recipe
        assert recipe.target == "tensorrt_llm"


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1", "1.3.0rc21", "1.3.0rc25.post1", "1.3.0", "1.4.0rc1+cu13"])
def test_versions_that_work(version: str) -> None:
    assert versions.line_of(version).generation == ("engine" if version.startswith("1.2") else "pytorch")


@pytest.mark.parametrize("version", ["0.21.0", "1.1.0", "1.2.0rc2", "1.3.0rc20", "1.4.0rc2", "1.4.0", "2.0", "today"])
def test_other_versions_are_refused_with_those_that_work(version: str, open_engine: Open) -> None:
    with pytest.raises(ExecutorError, match=r"versions that work: 1\.2\.x .* 1\.3\.0rc21 to 1\.4\.0rc1"):
        open_engine("1.3", version=version)


def test_an_engine_of_another_line_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    out = recipes.build(tmp_path, recipes.recipe("tensorrt_llm", checkpoint))
    with pytest.raises(ExecutorError, match="needs the package tensorrt_llm"):
        Engine.load(out)
    with fake.installed("1.2"), pytest.raises(ExecutorError, match=r"built for TensorRT-LLM 1.3; 1.2.1 is installed"):
        Engine.load(out)


def test_a_class_that_lost_a_parameter_is_refused(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    contract = fake.load("1.3")
    drafter = contract["modules"]["tensorrt_llm._torch.speculative.drafter"]["classes"]["Drafter"]
    drafter["init"] = "(self, max_concurrency=None)"
    monkeypatch.setattr(fake.modules, "load", lambda line: contract)
    with pytest.raises(ExecutorError, match="Drafter does not take max_draft_len, max_total_draft_tokens"):
        open_engine("1.3")


def test_the_checkpoint_must_still_be_what_was_built_from(tmp_path: Path) -> None:
    moved = write_checkpoint(tmp_path / "model")
    out = recipes.build(tmp_path, recipes.recipe("tensorrt_llm", moved))
    config = moved / "config.json"
    text = config.read_text()
    with fake.installed("1.3"):
        config.write_text(text.replace("10000.0", "20000.0"))
        with pytest.raises(EngineDirError, match=r"config.json has other content"):
            Engine.load(out)
        config.write_text(text + " ")
        with pytest.raises(EngineDirError, match=r"config.json has \d+ bytes, built from"):
            Engine.load(out)
        config.unlink()
        with pytest.raises(EngineDirError, match=r"config.json is missing"):
            Engine.load(out)
        moved.rename(tmp_path / "elsewhere")
        with pytest.raises(EngineDirError, match="build the engine again"):
            Engine.load(out)


def test_overrides(open_engine: Open, checkpoint: Path, tmp_path: Path) -> None:
    for overrides, message in (
        ({"device": "cuda"}, "CUDA_VISIBLE_DEVICES"),
        ({"threads": 2}, "GPUs"),
        ({"exact_verify": True}, "exact_verify"),
        ({"prompt_lookup_max_drafts": 9}, "rows"),
    ):
        with pytest.raises(OverrideError, match=message):
            open_engine("1.3", overrides=overrides)
    with pytest.raises(OverrideError, match="TensorRT-LLM's own"):
        open_engine("1.3", overrides={"prompt_lookup_decoding": False}, tensorrt_llm={"copies": "sa"})
    engine = open_engine("1.3", overrides={"prompt_lookup_max_drafts": 3})
    done = engine.generate("abcabcabcabcabc", temperature=0, max_tokens=40, ignore_eos=True)
    assert done.finish.stats.sources["history"].proposed > 0
    drafted = engine.engine._llm._fake.worker.drafted  # type: ignore[attr-defined]
    assert max(len(d) for r in drafted for d in r.values()) == 3


def test_builder_of_1_2(checkpoint: Path, tmp_path: Path) -> None:
    described = recipes.recipe("tensorrt_llm", checkpoint, tensorrt_llm={"version": "1.2", "quantization": "w8a16"})
    with pytest.raises(BuildError, match=r"needs tensorrt_llm 1\.2\.0 or a later 1\.2"):
        recipes.build(tmp_path / "a", described)
    with fake.installed("1.3"), pytest.raises(BuildError, match="has no engine builder"):
        recipes.build(tmp_path / "b", described)
    with fake.installed("1.2"):
        out = recipes.build(tmp_path / "c", described)
    manifest = engine_dir.load(out)
    assert manifest.built_with["tensorrt_llm"] == "1.2.1"
    built = yaml.safe_load((out / "engine" / "config.json").read_text())
    assert built == {
        "max_batch_size": 4,
        "max_seq_len": 256,
        "max_num_tokens": 68,
        "max_draft_len": 8,
        "mode": "DRAFT_TOKENS_EXTERNAL",
        "quant_algo": "W8A16",
        "tokens_per_block": 32,
    }
    assert args_of(out) == {
        "kv_cache_config": {"enable_block_reuse": True, "enable_partial_reuse": True, "free_gpu_memory_fraction": 0.9}
    }
