"""A tokenizer built from GGUF metadata: byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from trtbuild.checkpoint import pre_tokenizers
from trtbuild.checkpoint.base import CheckpointError
from trtbuild.checkpoint.tokenizer_files import TokenizerFiles, end_tokens

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Token types of GGUF that need a treatment of their own (1 normal, 5 unused and 6 byte do not)."""

_NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_SPACE = "\u2581"  # SentencePiece's visible space


def tokenizer_from_gguf(meta: Mapping[str, Any], where: str) -> TokenizerFiles:
    """Build the tokenizer. Raises CheckpointError for a model or pre-tokenizer that is not known exactly."""
    kind = meta.get("tokenizer.ggml.model")
    tokens = meta.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens is missing, so the file has no vocabulary")
    types = meta.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    vocab = {text: token_id for token_id, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens holds a token twice")
    ids = {name: _token_id(meta, name, len(tokens), where) for name in (*_NAMED, "eot", "eom")}

    if kind == "gpt2":
        pre = pre_tokenizers.find(meta.get("tokenizer.ggml.pre"), where)
        tokenizer, add_bos = _byte_level(meta, vocab, pre, where), pre.add_bos
    elif kind == "llama":
        for name, default in (("bos", 1), ("eos", 2), ("unknown", 0)):
            if ids[name] is None:
                ids[name] = default
        tokenizer, add_bos = _sentencepiece(meta, tokens, vocab, ids["unknown"], where), True
    else:
        raise CheckpointError(f"{where}: tokenizer.ggml.model is {kind!r}; supported are gpt2, llama")

    special = [t for t, kind_ in zip(tokens, types, strict=True) if kind_ in (UNKNOWN, CONTROL)]
    plain = [t for t, kind_ in zip(tokens, types, strict=True) if kind_ == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
    return TokenizerFiles(
        where=where,
        tokenizer=tokenizer,
        bos_token_id=ids["bos"],
        add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", add_bos)),
        eos_token_ids=end_tokens(tokenizer, (ids["eos"], ids["eot"], ids["eom"])),
        special_tokens={hf: tokens[ids[name]] for name, hf in _NAMED.items() if ids[name] is not None},
        chat_template=meta.get("tokenizer.chat_template") or None,
    )


def _token_id(meta: Mapping[str, Any], name: str, vocab_size: int, where: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = meta.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < vocab_size:
        raise CheckpointError(f"{where}: {key} is {value!r}, outside the vocabulary of {vocab_size} tokens")
    return value


def _byte_level(
    meta: Mapping[str, Any], vocab: dict[str, int], pre: pre_tokenizers.PreTokenizer, where: str
) -> Tokenizer:
    merges: list[tuple[str, str]] = []
    for rank, merge in enumerate(meta.get("tokenizer.ggml.merges") or ()):
        # A token may itself start with a space character; the separator is the first one after that.
        cut = merge.find(" ", 1)
        if cut < 0:
            raise CheckpointError(f"{where}: tokenizer.ggml.merges[{rank}] is {merge!r}, expected two tokens")
        merges.append((merge[:cut], merge[cut + 1 :]))
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception as e:  # the tokenizers library raises bare Exception
        raise CheckpointError(f"{where}: tokenizer.ggml.merges do not fit the vocabulary: {e}") from e
    tokenizer = Tokenizer(model)
    normalizer = pre.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    meta: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], unknown: int | None, where: str
) -> Tokenizer:
    """SentencePiece BPE merges whichever neighbours form the best-scored token: the scores are the merge order."""
    scores = meta.get("tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise CheckpointError(
            f"{where}: tokenizer.ggml.scores has {len(scores or ())} entries for {len(tokens)} tokens"
        )
    if meta.get("tokenizer.ggml.remove_extra_whitespaces"):
        raise CheckpointError(f"{where}: tokenizer.ggml.remove_extra_whitespaces is true, which is not supported")
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-score, vocab[left], vocab[right], left, right))
    ranked.sort()
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer
