"""GGUF files, written with the gguf package's own writer, read back to the tensors and config they came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trtbuild.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from trtbuild.checkpoint.architectures import find

from .tiny import executor_logits, random_tokens, save, tiny_model, transformers_logits

F32 = gguf.GGMLQuantizationType.F32
Q8_0 = gguf.GGMLQuantizationType.Q8_0
Q4_1 = gguf.GGMLQuantizationType.Q4_1


def interleaved(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Row order of GGUF's llama files: first half and second half of each head, alternating."""
    rows = np.arange(values.shape[0]).reshape(heads, 2, -1)
    return values[rows.transpose(0, 2, 1).reshape(-1)]


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    kind: gguf.GGMLQuantizationType = F32,
    meta: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:
    """What a converter writes for ``model``. ``meta`` adds or replaces keys under the architecture's prefix."""
    config = model.config
    architecture = find(config.model_type, "test")
    writer = gguf.GGUFWriter(path, config.model_type)
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": config.head_dim,
        **(meta or {}),
    }
    for key, value in values.items():
        if key in drop:
            continue
        name = f"{config.model_type}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    hf = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for canonical in open_config(model).tensor_shapes():
        data = hf[architecture.hf_name(canonical)]
        part = canonical.rpartition(".")[2]
        if architecture.gguf_interleaved and part in ("q", "q_bias"):
            data = interleaved(data, config.num_attention_heads)
        elif architecture.gguf_interleaved and part in ("k", "k_bias"):
            data = interleaved(data, config.num_key_value_heads)
        name = architecture.gguf_name(canonical)
        if name in drop:
            continue
        quantised = kind if data.ndim == 2 else F32
        writer.add_tensor(name, gguf.quantize(data, quantised), raw_dtype=quantised)
    for name, data in (extra or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def open_config(model: PreTrainedModel) -> Any:
    from trtbuild.checkpoint.fields import Fields

    values = model.config.to_dict()
    return find(values["model_type"], "test").from_hf(Fields(values, "test"), "float32")


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(path.name, base_dir=path.parent)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 2}),
    "llama-biases-tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_reads_back_what_was_converted(case: str, tmp_path: Path) -> None:
    kind, settings = CASES[case]
    model = tiny_model(kind, **settings)
    from_gguf = opened(write_gguf(model, tmp_path / "tiny.gguf"))
    from_hf = open_checkpoint(str(save(model, tmp_path / "hf")), base_dir=tmp_path)
    config = from_gguf.config("float16")
    # float32 metadata rounds the one float that is not a round number
    assert config.model_copy(update={"rms_norm_eps": 1e-6}) == from_hf.config("float16")
    assert config.rms_norm_eps == pytest.approx(1e-6, rel=1e-6)
    read, expected = dict(from_gguf.tensors()), dict(from_hf.tensors())
    assert read.keys() == expected.keys() == config.tensor_shapes().keys()
    for name, tensor in read.items():
        assert torch.equal(tensor, expected[name]), name


def test_quantised_tensors_are_the_values_they_stand_for(tmp_path: Path) -> None:
    model = tiny_model("llama", hidden_size=64, intermediate_size=96)
    checkpoint = opened(write_gguf(model, tmp_path / "q.gguf", kind=Q8_0))
    read = dict(checkpoint.tensors())
    for canonical, hf in (("embed", "model.embed_tokens"), ("layers.1.down", "model.layers.1.mlp.down_proj")):
        original = model.state_dict()[f"{hf}.weight"]
        blocks = original.reshape(-1, 32)
        # Q8_0, written out: 32 values share a float16 scale, each an 8-bit multiple of it.
        scale = (blocks.abs().amax(1, keepdim=True) / 127).half().float()
        difference = (read[canonical].reshape(-1, 32) - blocks).abs()
        assert (difference <= 0.51 * scale + 1e-3 * blocks.abs()).all()
        steps = read[canonical].reshape(-1, 32) / scale
        assert torch.allclose(steps, steps.round(), atol=1e-3)
    assert checkpoint.describe()["tensor_types"] == {"Q8_0": 23, "F32": 7}


def test_q4_1_is_dequantised_bit_for_bit(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    path = write_gguf(model, tmp_path / "q.gguf", kind=Q4_1)
    read = dict(opened(path).tensors())["layers.0.gate"].numpy()
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_gate.weight")
    # Q4_1, independently: float16 scale and minimum, then 16 bytes; low nibbles first, then high ones.
    blocks = np.asarray(stored.data).reshape(-1, 20)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    np.testing.assert_array_equal(read.reshape(-1, 32), nibbles * scale + least)


def llama3_divisors(factor: float, low: float = 1.0, high: float = 4.0) -> NDArray[np.float32]:
    """What a converter writes as ``rope_freqs.weight`` for head_dim 16 and theta 500000."""
    divisors = []
    for d in range(0, 16, 2):
        wavelength = 2 * np.pi * 500000.0 ** (d / 16)
        if wavelength < 8192 / high:
            divisors.append(1.0)
        elif wavelength > 8192 / low:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama3_frequencies_are_recognised(tmp_path: Path) -> None:
    model, tokens = tiny_model("llama", rope_parameters=LLAMA3, max_position_embeddings=131072), random_tokens()
    path = write_gguf(model, tmp_path / "l3.gguf", extra={"rope_freqs.weight": llama3_divisors(32.0)})
    checkpoint = opened(path)
    rope = checkpoint.config("float32").rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("llama3", 32.0, 8192)
    np.testing.assert_allclose(
        executor_logits(checkpoint, tokens), transformers_logits(model, tokens), rtol=0, atol=1e-4
    )


def test_other_frequencies_are_refused(tmp_path: Path) -> None:
    model = tiny_model("llama", rope_parameters=LLAMA3)
    for divisors in (llama3_divisors(32.0, low=2.0), np.linspace(1, 9, 8, dtype=np.float32), np.ones(4, np.float32)):
        path = write_gguf(model, tmp_path / "odd.gguf", extra={"rope_freqs.weight": divisors})
        with pytest.raises(CheckpointError, match="rope_freqs"):
            opened(path).config("float32")


@pytest.mark.parametrize(
    ("meta", "parameters"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.finetuned": 1,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rope_scaling_metadata(meta: dict[str, Any], parameters: dict[str, Any], tmp_path: Path) -> None:
    model, tokens = tiny_model("qwen2", rope_parameters={"rope_theta": 1e4, **parameters}), random_tokens()
    checkpoint = opened(write_gguf(model, tmp_path / "r.gguf", meta=meta))
    np.testing.assert_allclose(
        executor_logits(checkpoint, tokens), transformers_logits(model, tokens), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor is 1.5"),
        ({"rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"attention.value_length": 8}, "attention.value_length is 8"),
        ({"expert_count": 8}, "expert_count is 8"),
        ({"attention.sliding_window": 4096}, "attention.sliding_window is 4096"),
        ({"logit_scale": 0.5}, "logit_scale is 0.5"),
        ({"attention.head_count": "four"}, "attention.head_count is 'four', expected int"),
        ({"attention.head_count_kv": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ],
)
def test_metadata_that_is_not_understood_is_named(meta: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", meta=meta)
    with pytest.raises(CheckpointError, match=message):
        opened(path).config("float32")


def test_zero_switches_nothing_on(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "z.gguf", meta={"expert_count": 0, "attention.sliding_window": 0})
    assert opened(path).config("float32").sliding_windows == ()


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    model = tiny_model("llama")
    path = write_gguf(
        model, tmp_path / "a.gguf", drop=("blk.1.ffn_up.weight",), extra={"blk.0.x": np.ones(3, np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"missing: blk\.1\.ffn_up\.weight; unexpected: blk\.0\.x"):
        next(opened(path).tensors())


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "k.gguf", drop=("context_length",))
    with pytest.raises(CheckpointError, match="context_length is missing"):
        opened(path).config("float32")


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "s.gguf", meta={"feed_forward_length": 128})
    with pytest.raises(CheckpointError, match=r"ffn_gate\.weight is \[96, 64\], the config asks for \[128, 64\]"):
        next(opened(path).tensors())


@pytest.mark.parametrize("keep", [3, 20, 100, 1000, 20000, -200])
def test_a_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "t.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"truncated|not a GGUF file"):
        opened(path)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "g.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"'gemma3'; supported in GGUF are llama, qwen2, qwen3"):
        opened(tmp_path / "g.gguf")
