"""What a token is in bytes: the ground that decoding and streaming stand on.

A tokenizer's ``decoder`` section says how its pieces become text. The two families in use map each piece to bytes on
its own, so that the text of a sequence is the concatenation of its tokens' bytes read as UTF-8:

- byte-level BPE writes each byte as one printable character (GPT-2's table);
- SentencePiece writes a space as ``▁`` and a byte outside its alphabet as ``<0xE2>``, and may put one space before
  the first word that decoding takes off again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceDecoder(NamedTuple):
    """How pieces become bytes."""

    to_bytes: Callable[[str], bytes]
    """The bytes of one vocabulary piece."""
    space: str
    """How pieces and added tokens write a space: empty in byte-level BPE, whose added tokens are plain text."""
    strips_first_space: bool
    """Whether a text that starts with a space loses it."""


def piece_decoder(decoder: dict[str, Any] | None) -> PieceDecoder:
    """The rule for the ``decoder`` section of a ``tokenizer.json``.

    Raises ValueError, naming the section, for one that does not map pieces to bytes one by one.
    """
    steps = _flattened(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceDecoder(byte_level_bytes, space="", strips_first_space=False)
    space: str = ""
    strips = False
    for step in steps:
        kind = step.get("type")
        if kind == "Replace" and step.get("content") == " ":
            pattern = step.get("pattern")
            space = (pattern.get("String") if isinstance(pattern, dict) else None) or ""
            if not space:
                break
        elif kind == "Metaspace":
            space = step.get("replacement", "▁")
            strips = step.get("prepend_scheme", "always") != "never"
        elif kind == "Strip" and step.get("content") == " " and step.get("start") == 1 and not step.get("stop"):
            strips = True
        elif kind not in ("ByteFallback", "Fuse"):
            break
    else:
        if space:
            fallback = "ByteFallback" in kinds
            return PieceDecoder(_sentencepiece_bytes(space, fallback), space=space, strips_first_space=strips)
    raise ValueError(f"decoder {decoder!r} is not supported; supported are ByteLevel and SentencePiece's")


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a byte-level BPE piece; a piece with a character outside the table stands for itself."""
    try:
        return bytes(BYTE_OF[character] for character in piece)
    except KeyError:
        return piece.encode("utf-8", "replace")


def _sentencepiece_bytes(space: str, fallback: bool) -> Callable[[str], bytes]:
    def to_bytes(piece: str) -> bytes:
        if fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(space, " ").encode("utf-8", "replace")

    return to_bytes


def _flattened(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", ()) for step in _flattened(inner)]
    return [decoder]


def _byte_table() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 characters stand for themselves, other bytes for characters from U+0100 up."""
    table, shifted = {}, 256
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF:
            table[chr(byte)] = byte
        else:
            table[chr(shifted)] = byte
            shifted += 1
    return table


BYTE_OF = _byte_table()
"""The byte that a character stands for in the pieces of a byte-level BPE."""
