"""Hugging Face directories: what is read, and every reason not to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trtbuild.checkpoint import Checkpoint, CheckpointError, open_checkpoint

from .tiny import save, tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model("llama"), tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture
def copy(model_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the tiny model, its config and tensors changed."""

    def make(
        config: dict[str, Any] | None = None,
        drop: tuple[str, ...] = (),
        tensors: dict[str, torch.Tensor] | None = None,
        remove: tuple[str, ...] = (),
    ) -> Path:
        target = tmp_path / "copy"
        target.mkdir()
        values = {**json.loads((model_dir / "config.json").read_text()), **(config or {})}
        (target / "config.json").write_text(json.dumps({k: v for k, v in values.items() if k not in drop}))
        stored = {**load_file(model_dir / "model.safetensors"), **(tensors or {})}
        save_file({k: v for k, v in stored.items() if k not in remove}, target / "model.safetensors")
        return target

    return make


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(path.name, base_dir=path.parent)


def read_all(path: Path) -> dict[str, torch.Tensor]:
    return dict(opened(path).tensors())


def test_sharded_equals_single(model_dir: Path, tmp_path: Path) -> None:
    sharded = save(tiny_model("llama"), tmp_path / "sharded", max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    single, parts = read_all(model_dir), read_all(sharded)
    assert single.keys() == parts.keys()
    assert all(torch.equal(single[name], parts[name]) for name in single)
    names = {path.name for path in opened(sharded).files}
    assert {"config.json", "model.safetensors.index.json"} < names
    assert names >= {path.name for path in sharded.glob("*.safetensors")}


def test_tensors_keep_their_stored_type(tmp_path: Path) -> None:
    path = save(tiny_model("llama").to(torch.bfloat16), tmp_path / "bf16")
    assert {tensor.dtype for tensor in read_all(path).values()} == {torch.bfloat16}
    assert opened(path).config("float16").dtype == "float16"


def test_the_config_before_transformers_5_means_the_same(copy: Callable[..., Path]) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "finetuned": True}
    path = copy(
        {"rope_theta": 5e5, "rope_scaling": scaling, "torch_dtype": "float32"}, drop=("rope_parameters", "dtype")
    )
    rope = opened(path).config("float32").rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_position) == ("yarn", 5e5, 4.0, 64)


def test_original_positions_default_to_the_whole_context(copy: Callable[..., Path]) -> None:
    path = copy({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}})
    config = opened(path).config("float32")
    assert config.rope.original_max_position == config.max_position


def test_missing_shard(tmp_path: Path) -> None:
    path = save(tiny_model("llama"), tmp_path / "sharded", max_shard_size="60KB")
    sorted(path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(CheckpointError, match="shards are missing: model-00002-of"):
        opened(path)


def test_an_index_cannot_point_elsewhere(copy: Callable[..., Path]) -> None:
    path = copy()
    index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="shards must lie beside the index"):
        opened(path)


def test_truncated_safetensors(copy: Callable[..., Path]) -> None:
    path = copy()
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated or not valid safetensors"):
        read_all(path)


def test_wrong_shape_missing_and_extra_tensors_are_named(copy: Callable[..., Path]) -> None:
    path = copy(
        tensors={"model.layers.0.mlp.up_proj.weight": torch.zeros(95, 64), "model.layers.0.mlp.router": torch.zeros(3)},
        remove=("model.norm.weight",),
    )
    with pytest.raises(CheckpointError) as error:
        read_all(path)
    message = str(error.value)
    assert "missing: model.norm.weight" in message
    assert "unexpected: model.layers.0.mlp.router" in message
    assert "model.layers.0.mlp.up_proj.weight is [95, 64], the config asks for [96, 64]" in message


def test_a_bias_the_config_does_not_know_is_refused(copy: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.0\.self_attn\.q_proj\.bias"):
        read_all(copy(tensors={"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))


def test_rotary_buffers_of_old_exports_are_ignored(copy: Callable[..., Path]) -> None:
    path = copy(tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert len(read_all(path)) == len(opened(path).config("float32").tensor_shapes())


@pytest.mark.parametrize("equal", [True, False])
def test_a_stored_head_beside_a_tied_config(equal: bool, copy: Callable[..., Path], model_dir: Path) -> None:
    embed = load_file(model_dir / "model.safetensors")["model.embed_tokens.weight"]
    path = copy({"tie_word_embeddings": True}, tensors={"lm_head.weight": embed.clone() if equal else embed + 1})
    if equal:
        assert "lm_head" not in read_all(path)
    else:
        with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
            read_all(path)


def test_stored_integers_are_refused(copy: Callable[..., Path]) -> None:
    path = copy(tensors={"model.layers.0.mlp.up_proj.weight": torch.zeros(96, 64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is stored as I8; supported are F64, F32, F16, BF16"):
        read_all(path)


def test_pickled_weights_are_refused(copy: Callable[..., Path]) -> None:
    path = copy()
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="run code when loaded"):
        opened(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantization_config .*\(gptq\)"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config .*\(fp8\)"),
        (
            {"model_type": "gemma3"},
            "'gemma3' is not supported; supported are llama, mistral, qwen2, qwen3",
        ),
        ({"model_type": "../llama"}, "is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"text_config": {}}, "multimodal"),
    ],
)
def test_what_is_refused_at_the_door(config: dict[str, Any], message: str, copy: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(copy(config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_scaling: rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling: rope_type is 'dynamic'"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}, "mrope_section is"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4}},
            "no band to blend",
        ),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes', expected bool"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected 1 to"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected 1 to 4096"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a finite number"),
        ({"rope_parameters": {"rope_theta": -1.0}}, r"RoPE cannot be built: theta -1\.0"),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": -5}}, "expected at least 1"),
        ({"num_attention_heads": 3, "head_dim": 16}, "num_heads 3 is not a multiple of num_kv_heads 2"),
        # fields of other models that change the forward pass
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"residual_multiplier": 0.2}, "residual_multiplier is 0.2"),
        ({"logits_scaling": 8}, "logits_scaling is 8"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"no_rope_layers": [1, 1, 0]}, "no_rope_layers is"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}, "auto_map is"),
    ],
)
def test_fields_that_would_change_the_model_are_named(
    config: dict[str, Any], message: str, copy: Callable[..., Path]
) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(copy(config)).config("float32")


def test_cosmetic_and_switched_off_fields_pass(copy: Callable[..., Path]) -> None:
    path = copy(
        {
            "unsloth_fixed": True,
            "attention_dropout": 0.1,
            "sliding_window": None,
            "rope_scaling": None,
            "use_qk_norm": False,
            "some_future_note": "hello",
            "_attn_implementation": "flash_attention_2",
            "pretraining_tp": 2,
            "temperature": 1.0,
            "is_llama_config": True,
            "rope_interleaved": False,
            "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        }
    )
    assert opened(path).config("float32").architecture == "llama"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layer_types": ["full_attention"]}, "expected a list of 3 entries"),
        ({"layer_types": ["chunked_attention"] * 3}, "has 'chunked_attention'"),
        ({"layer_types": ["sliding_attention"] * 3, "use_sliding_window": False}, "is off"),
    ],
)
def test_layer_types_must_make_sense(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save(tiny_model("qwen3"), tmp_path / "model")
    values = {**json.loads((path / "config.json").read_text()), **config}
    (path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        opened(path).config("float32")


def test_defaults_an_old_config_leaves_out(tmp_path: Path) -> None:
    for kind, dropped, attribute, expected in (
        ("qwen3", "head_dim", "head_dim", 128),
        ("qwen2", "head_dim", "head_dim", 16),
        ("mistral", "sliding_window", "sliding_windows", (4096,) * 3),
        ("llama", "num_key_value_heads", "num_kv_heads", 4),
        ("llama", "rms_norm_eps", "rms_norm_eps", 1e-6),
    ):
        path = save(tiny_model(kind), tmp_path / f"{kind}-{dropped}")
        values = json.loads((path / "config.json").read_text())
        values.pop(dropped)
        (path / "config.json").write_text(json.dumps(values))
        assert getattr(opened(path).config("float32"), attribute) == expected


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_config_that_is_no_object(text: str, copy: Callable[..., Path]) -> None:
    path = copy()
    (path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json: is not"):
        opened(path)
