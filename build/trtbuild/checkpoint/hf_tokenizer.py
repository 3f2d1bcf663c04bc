"""The tokenizer of a Hugging Face directory, without transformers where ``tokenizer.json`` is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trtbuild.checkpoint.base import CheckpointError
from trtbuild.checkpoint.json_file import read_json
from trtbuild.checkpoint.tokenizer_files import TokenizerFiles, end_tokens

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def tokenizer_from_hf(directory: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """Read the tokenizer of ``directory``; ``config`` is its ``config.json``. Raises CheckpointError."""

    def optional(name: str) -> dict[str, Any]:
        return read_json(directory / name) if (directory / name).is_file() else {}

    settings, generation = optional("tokenizer_config.json"), optional("generation_config.json")
    tokenizer = _load(directory)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = _special_tokens(settings, optional("special_tokens_map.json"))

    def id_of(name: str) -> int | None:
        text = special.get(name)
        return None if text is None else tokenizer.token_to_id(text)

    bos = id_of("bos_token")
    if bos is None and isinstance(config.get("bos_token_id"), int):
        bos = config["bos_token_id"]
    ends = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id")), id_of("eos_token")]
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    return TokenizerFiles(
        where=str(directory),
        tokenizer=tokenizer,
        bos_token_id=bos,
        add_bos=_adds_bos(tokenizer, settings, bos),
        # A config whose eos is outside the tokenizer's vocabulary is a leftover of another tokenizer.
        eos_token_ids=end_tokens(tokenizer, [token for token in ends if token is None or 0 <= token < size]),
        special_tokens=special,
        chat_template=_chat_template(directory, settings, optional("chat_template.json")),
    )


def _load(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as e:  # the tokenizers library raises bare Exception
            raise CheckpointError(f"{path}: is not a tokenizer that this version of tokenizers reads: {e}") from e
    sources = [name for name in ("tokenizer.model", "vocab.json") if (directory / name).is_file()]
    if not sources:
        raise CheckpointError(f"{directory}: has no tokenizer.json, tokenizer.model or vocab.json")
    try:
        from transformers import AutoTokenizer
    except ImportError as e:
        raise CheckpointError(
            f"{directory}: has {sources[0]} but no tokenizer.json; converting it needs transformers: "
            "pip install transformers sentencepiece"
        ) from e
    try:
        converted = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return Tokenizer.from_str(converted.backend_tokenizer.to_str())
    except Exception as e:  # missing sentencepiece, unknown class, corrupt file: no common base
        raise CheckpointError(f"{directory}: {sources[0]} cannot be converted to tokenizer.json: {e}") from e


def _special_tokens(settings: Mapping[str, Any], fallback: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _NAMED:
        value = settings.get(name, fallback.get(name))
        if isinstance(value, dict):  # a serialised AddedToken
            value = value.get("content")
        if isinstance(value, str) and value:
            found[name] = value
    return found


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]


def _adds_bos(tokenizer: Tokenizer, settings: Mapping[str, Any], bos: int | None) -> bool:
    """The setting where it is written, else what the tokenizer's own post-processor does."""
    if isinstance(written := settings.get("add_bos_token"), bool):
        return written
    return bos is not None and tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos]


def _chat_template(directory: Path, settings: Mapping[str, Any], legacy: Mapping[str, Any]) -> str | None:
    """``chat_template.jinja`` wins, then ``chat_template.json``, then ``tokenizer_config.json``."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as e:
            raise CheckpointError(f"{path}: is not UTF-8: {e}") from e
    template = legacy.get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        if "default" not in named:
            raise CheckpointError(f"{directory}: chat_template has {sorted(map(str, named))} but no 'default'")
        template = named["default"]
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{directory}: chat_template is neither text nor a list of named templates")
    return template or None
