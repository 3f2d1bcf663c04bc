"""How few tokens a text can have, found without encoding it.

A text of many megabytes takes a tokenizer half a minute, only to be refused for its length. Counting its bytes takes
milliseconds and proves most such texts too long.

The proof: every token stands for bytes of the text, and every byte belongs to one token. Give byte ``b`` the weight
``1 / L(b)``, where ``L(b)`` is the length in bytes of the longest token that has ``b`` in it. The bytes of one token
then weigh 1 at most, so a text has at least as many tokens as its bytes weigh. Letters weigh much more than spaces,
whose longest tokens are indentation.

What may vanish, or become an unknown token with any number of others, weighs nothing. A tokenizer with a step that is
not known here has no bound: it answers 0 for every text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trtserve.token_bytes import BYTE_OF, byte_level_bytes

#: How SentencePiece writes a space. Its text and pieces are both weighed with plain spaces in its place.
_SPACE = "▁"
#: Pre-tokenizers that cut the text and lose nothing of it; ``Split`` and ``Punctuation`` can be told to.
_CUTTING = frozenset({"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation"})
#: NFC makes one byte of at most this many: three jamo of 9 bytes become a syllable of 3, a Greek iota with two accents
#: of 7 bytes a character of 2.
_NFC_SHRINKS = 4
#: First UTF-8 bytes of U+4000 to U+9FFF, Chinese characters for the most part, which NFC never changes or joins.
_INERT = range(0xE4, 0xEA)
#: Of a sum of up to billions of weights, what rounding can add.
_ROUNDING = 1e-9


class TokenBound:
    """A lower bound of the token count of any text, for one tokenizer. Safe to share between threads."""

    def __init__(self, weights: NDArray[np.float64] | None, *, composes: bool = False, byte_level: bool = True) -> None:
        """``weights``: of each byte, float64 ``[256]``; None where nothing is known. ``composes``: text is brought to
        NFC before it is cut into tokens. ``byte_level``: not SentencePiece."""
        self._weights = weights
        self._composes = composes
        self._written = _bytes if byte_level else _spaced
        known = weights is not None and bool((weights > 0).all())
        self._least = float(weights.min()) / _NFC_SHRINKS if weights is not None and known else 0.0

    @classmethod
    def of(cls, layout: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> TokenBound:
        """The bound of ``tokenizer``, whose ``tokenizer.json`` is ``layout``."""
        model = layout["model"]
        cuts = list(_flat(layout.get("pre_tokenizer"), "pretokenizers"))
        changes = list(_flat(layout.get("normalizer"), "normalizers"))
        composes = any(step.get("type") == "NFC" for step in changes)
        byte_level = any(step.get("type") == "ByteLevel" for step in cuts)
        spaced = any(step.get("type") in ("Replace", "Metaspace") for step in (*changes, *cuts))
        if (
            model.get("type") not in ("BPE", "Unigram")
            or model.get("continuing_subword_prefix")
            or model.get("end_of_word_suffix")
            or not all(map(_keeps_text, cuts))
            or not all(map(_keeps_bytes, changes))
            or (composes and len(changes) > 1)
            or byte_level == spaced
        ):
            return cls(None)
        pieces = tokenizer.get_vocab(with_added_tokens=False)
        written = _bytes if byte_level else _spaced
        tokens = [byte_level_bytes(piece) if byte_level else written(piece) for piece in pieces]
        if byte_level:
            covered = {byte for character, byte in BYTE_OF.items() if character in pieces}
        else:
            covered = {token[0] for token in tokens if len(token) == 1}
            # A character that is no piece is written in bytes where all of them are tokens, else it is unknown.
            by_bytes = model.get("byte_fallback") and all(f"<0x{byte:02X}>" in pieces for byte in range(256))
            covered = set(range(256)) if by_bytes else covered if _SPACE in pieces else covered - {0x20}
        added = tokenizer.get_added_tokens_decoder().values()
        for token in added:
            tokens.append(written(token.content))
            if token.normalized and tokenizer.normalizer is not None:
                tokens.append(written(tokenizer.normalizer.normalize_str(token.content)))
        if any(token.lstrip or token.rstrip for token in added):
            # Such a token takes in all white space beside it.
            covered -= _white_space()
        lengths = np.array([len(token) for token in tokens])
        longest = np.ones(256, np.int64)
        np.maximum.at(longest, np.frombuffer(b"".join(tokens), np.uint8), np.repeat(lengths, lengths))
        weights = np.zeros(256)
        weights[sorted(covered)] = 1 / longest[sorted(covered)]
        return cls(weights, composes=composes, byte_level=byte_level)

    def fewest(self, text: str) -> int:
        """No encoding of ``text`` has fewer tokens than this, with or without its control tokens taken as such."""
        if self._weights is None:
            return 0
        data = np.frombuffer(self._written(text), np.uint8)
        if not self._composes or text.isascii():
            return self._count(data)
        # NFC can join a character with what follows, but no ASCII character with another.
        ascii_bytes = data < 0x80
        alone = ascii_bytes & np.append(ascii_bytes[1:], True)
        heads = np.isin(data, _INERT)
        alone |= heads
        alone[1:] |= heads[:-1]
        alone[2:] |= heads[:-2]
        return max(self._count(data[alone]), _whole(len(data) * self._least))

    def head(self, text: str, tokens: int) -> str:
        """A beginning of ``text`` that has at least ``tokens`` tokens; all of it where no shorter one is known to."""
        end = tokens
        while end < len(text) and self.fewest(text[:end]) < tokens:
            end *= 2
        return text[:end]

    def _count(self, data: NDArray[np.uint8]) -> int:
        assert self._weights is not None
        return _whole(float(np.bincount(data, minlength=256) @ self._weights))


def _whole(weight: float) -> int:
    return math.ceil(weight * (1 - _ROUNDING))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _spaced(text: str) -> bytes:
    return _bytes(text.replace(_SPACE, " "))


def _flat(step: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a tokenizer's section, sequences taken apart."""
    if not step:
        return
    if step.get("type") != "Sequence":
        yield step
        return
    for each in step[inner]:
        yield from _flat(each, inner)


def _keeps_text(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind == "Metaspace" and step.get("replacement") != _SPACE:
        return False
    return kind in _CUTTING and step.get("behavior") != "Removed"


def _keeps_bytes(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer step takes nothing away, spaces written SentencePiece's way and NFC apart."""
    match step:
        case {"type": "Replace", "pattern": {"String": " "}, "content": content}:
            return bool(content == _SPACE)
        case {"type": "Prepend" | "NFC"}:
            return True
    return False


def _white_space() -> set[int]:
    """Every byte that a white-space character has in UTF-8. The last such character is U+3000."""
    return {byte for code in range(0x3001) if chr(code).isspace() for byte in chr(code).encode()}
