"""Small tokenizers, as the GGUF metadata that describes them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = [
    "def add(a, b):\n    return a + b  # the sum of 2 numbers\n",
    "The quick brown fox jumps over the lazy dog, 1234 times. It's what we've done; they'll DON'T.",
    "naïve café — “quotes” … 日本語のテキスト 한국어 🙂🙃👩‍👩‍👧 ١٢٣",
    '{"name": "value", "list": [1, 22, 333], "nested": {"a": null}}\r\n\r\n\t\tindented   spaces',
]


@cache
def byte_level_meta(pre: str = "smollm") -> dict[str, Any]:
    """Metadata of a byte-level BPE with 3 control tokens, one user-defined token and about 500 others."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(_CORPUS * 3, trainer)
    tokens = [text for text, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    vocab = set(tokens)
    merges = _merges(trained)
    assert all(left + right in vocab for left, right in (merge.split(" ") for merge in merges))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "<think é>"],
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)) + [4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _merges(tokenizer: Tokenizer) -> list[str]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


@cache
def sentencepiece_meta() -> dict[str, Any]:
    """Metadata of a SentencePiece BPE: control tokens, all 256 byte tokens, letters, and pieces made of them."""
    tokens, types, scores = ["<unk>", "<s>", "</s>"], [2, 3, 3], [0.0] * 3
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [6] * 256
    scores += [0.0] * 256
    pieces = [
        "▁t",
        "he",
        "▁the",
        "er",
        "in",
        "▁a",
        "th",
        "▁th",
        "on",
        "re",
        "▁▁",
        "▁▁▁▁",
        "an",
        "nd",
        "and",
        "▁and",
        "ab",
    ]
    pieces += ["aba", "ba", "bab", "é▁", "22"]
    letters = sorted(set("▁abcdefghinorstxé2.,") - set(pieces))
    for rank, piece in enumerate([*pieces, *letters]):
        tokens.append(piece)
        types.append(1)
        scores.append(-float(rank))
    tokens.append("[INST]")
    types.append(4)
    scores.append(0.0)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
    }
