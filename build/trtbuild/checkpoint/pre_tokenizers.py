"""Pre-tokenizers by the name GGUF gives them in ``tokenizer.ggml.pre``.

GGUF keeps a byte-level BPE's vocabulary and merges, but of its pre-tokenizer only a name. Each name stands for a list
of patterns that split the text one after the other. They are built here as the models' own tokenizers define them;
a name that is not here is refused, since a wrong split gives wrong tokens without any error.
"""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

from trtbuild.checkpoint.base import CheckpointError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased_words(suffix: str) -> str:
    """Words cut where lower case turns to upper, as o200k and Tekken do."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}"


LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _TAIL
QWEN2 = _WORDS + r"|\p{N}" + _TAIL
TEKKEN = _cased_words("") + r"|\p{N}" + _CASED_TAIL
GPT4O = _cased_words(f"{_CONTRACTION}?") + r"|\p{N}{1,3}" + _CASED_TAIL
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class PreTokenizer(NamedTuple):
    """How a byte-level BPE model cuts text before merging."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as a whole stays whole, whatever the merges say."""
    add_bos: bool = False
    """What ``add_bos_token`` means when the file does not say."""
    nfc: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Split by each pattern in turn, then map bytes to characters."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_DIGITS_GPT2 = PreTokenizer((r"\p{N}", GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
# Qwen's tokenizers compose characters first. GGUF does not say so; text a model never saw decomposed should not be.
_QWEN2 = PreTokenizer((QWEN2,), nfc=True)
_GPT4O = PreTokenizer((GPT4O,))

BY_NAME = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "gigachat", "mellum", "olmo", "mpt", "exaone4"), PreTokenizer((GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_GPT2),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((LLAMA3,))),
    "qwen2": _QWEN2,
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), PreTokenizer((QWEN2,))),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
}


def find(name: str | None, where: str) -> PreTokenizer:
    """The pre-tokenizer of that name. Raises CheckpointError for a missing or unknown one."""
    if name is None:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.pre is missing, so how text is split before BPE is unknown; convert the model "
            "again with a current converter"
        )
    if name not in BY_NAME:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not supported; supported are "
            f"{', '.join(sorted(BY_NAME))}"
        )
    return BY_NAME[name]
