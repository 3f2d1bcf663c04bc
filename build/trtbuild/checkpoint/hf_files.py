"""Names of the files of a Hugging Face directory that a build reads."""

from __future__ import annotations

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

TOKENIZER_INPUTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Every file that can decide what ``hf_tokenizer.tokenizer_from_hf`` returns."""
