"""The same weights in transformers: the reference for text, and the baseline for speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from trtserve import engine_dir

_LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_OTHER_NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}


def _transformers_name(name: str) -> str:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}"


def load_llama(directory: Path) -> Any:
    """transformers' LlamaForCausalLM in float32 with the weights of a llama engine directory.

    Raises ValueError for another architecture or a variant this does not map.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    manifest = engine_dir.read(directory)
    model = manifest.model
    if model.architecture != "llama" or model.rope.kind != "default" or model.attention_bias or model.mlp_bias:
        raise ValueError(f"{directory}: only a plain llama can be loaded for reference, not {model.architecture}")
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_position,
        rms_norm_eps=model.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope.theta},
        tie_word_embeddings=model.tie_word_embeddings,
        bos_token_id=manifest.tokenizer.bos_token_id,
        eos_token_id=list(manifest.tokenizer.eos_token_ids),
        pad_token_id=manifest.tokenizer.eos_token_ids[0],
    )
    with torch.device("meta"):
        reference = LlamaForCausalLM(config)
    reference = reference.to_empty(device="cpu")
    weights = {
        _transformers_name(name): tensor.float()
        for name, tensor in load_file(directory / engine_dir.WEIGHTS_NAME).items()
    }
    if model.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    reference.load_state_dict(weights, strict=True)
    reference.tie_weights()
    # Rotary tables are buffers computed at construction, which the meta device skipped.
    reference.model.rotary_emb = type(reference.model.rotary_emb)(config)
    return reference.eval()


class _Clock:
    """A streamer that notes when tokens arrive; transformers calls ``put`` with the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens = 0

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) > 1:
            self.tokens += value.numel()

    def end(self) -> None:
        pass


def generate(reference: Any, prompt: list[int], max_tokens: int, **options: Any) -> tuple[list[int], float]:
    """Greedy tokens and decode tokens/s (from the first token's arrival to the last's) of transformers' generate."""
    clock = _Clock()
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            streamer=clock,
            **options,
        )
    tokens = out[0, len(prompt) :].tolist()
    # times[1] is the first token's arrival (with prompt lookup, perhaps several at once).
    elapsed = clock.times[-1] - clock.times[1]
    return tokens, (len(tokens) - 1) / elapsed if elapsed > 0 and len(tokens) > 1 else float("nan")
