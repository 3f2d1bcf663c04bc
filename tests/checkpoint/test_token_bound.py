"""A text's fewest tokens: never more than it has, and close enough to refuse what is far too long."""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models

from trtbuild.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from trtserve.engine_dir import TokenizerRecord
from trtserve.token_bound import _INERT, _NFC_SHRINKS, TokenBound
from trtserve.tokenizer import Tokenizer, TooManyTokensError

from .vocabularies import byte_level_meta, sentencepiece_meta

Layout = dict[str, Any]


def layout_of(meta: dict[str, Any]) -> Layout:
    layout: Layout = json.loads(tokenizer_from_gguf(meta, "test").tokenizer.to_str())
    return layout


def bound_of(layout: Layout) -> tuple[TokenBound, tokenizers.Tokenizer]:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(layout))
    return TokenBound.of(layout, tokenizer), tokenizer


BYTE_LEVEL = layout_of(byte_level_meta())
SENTENCEPIECE = layout_of(sentencepiece_meta())


#: Loses the spaces that a text begins with.
UNICODE_SCRIPTS = {"type": "UnicodeScripts"}


def byte_level_with(**changes: Any) -> Layout:
    return {**copy.deepcopy(BYTE_LEVEL), **changes}


def stripping() -> Layout:
    layout = byte_level_with()
    for token in layout["added_tokens"]:
        token["lstrip"] = token["rstrip"] = True
    return layout


def lacking_bytes() -> Layout:
    """A vocabulary that has lost tokens of single bytes: that text vanishes."""
    layout = byte_level_with()
    model = layout["model"]
    lost = {"x", "Ġ", "Â", "Ċ"}
    model["merges"] = [pair for pair in model["merges"] if not lost & set("".join(pair))]
    model["vocab"] = {piece: at for piece, at in model["vocab"].items() if piece not in lost}
    model["vocab"]["\n"] = len(byte_level_meta()["tokenizer.ggml.tokens"])  # as no byte is written
    return layout


def without_byte_tokens() -> Layout:
    """SentencePiece that knows few characters: the rest is unknown, a whole run of it one token."""
    layout = copy.deepcopy(SENTENCEPIECE)
    model = layout["model"]
    model["byte_fallback"] = False
    model["vocab"] = {piece: at for piece, at in model["vocab"].items() if not piece.startswith("<0x")}
    model["fuse_unk"] = True
    return layout


def unigram() -> Layout:
    layout = copy.deepcopy(SENTENCEPIECE)
    pieces = sorted(layout["model"]["vocab"].items(), key=lambda item: item[1])
    scored = [(piece, -float(len(pieces)) + len(piece)) for piece, _ in pieces]
    model = models.Unigram(scored, 0, True)
    layout["model"] = json.loads(tokenizers.Tokenizer(model).to_str())["model"]
    return layout


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "byte level": byte_level_with,
    "composed": lambda: byte_level_with(normalizer={"type": "NFC"}),
    "stripping": stripping,
    "lacking bytes": lacking_bytes,
    "SentencePiece": lambda: SENTENCEPIECE,
    "no byte tokens": without_byte_tokens,
    "Unigram": unigram,
}

#: Pieces that make the longest tokens, vanish, compose, or are written like something else.
PARTS = st.sampled_from(
    [
        " ",
        "  ",
        "\n",
        "\u3000",
        "▁",
        "▁▁▁▁",
        "the and",
        "22",
        "<0x41>",
        "<|im_end|>",
        "<think é>",
        "[INST]",
        "K\u0327",
        "\u212a\u0327",
        "e\u0301",
        "\u1112\u1161\u11ab",
        "日本語",
        "日\u0301",
        "\u2126\u0314\u0342\u0345",
        "\u1fbe\u0308\u0301",
        "x",
        "\xa0",
        "quick",
        "🙂",
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=4), max_size=40).map("".join)


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=80, deadline=None)
@given(text=TEXTS, times=st.integers(1, 30))
@example(text=" ", times=500)
@example(text="▁", times=500)
@example(text="\u212a\u0327", times=100)
@example(text="\u1fbe\u0308\u0301", times=100)
@example(text="<|im_end|>" + " " * 40, times=9)
@example(text="日本語" * 30, times=1)
@example(text="\n", times=100)
def test_no_text_has_fewer_tokens(name: str, text: str, times: int) -> None:
    bound, tokenizer = bound_of(LAYOUTS[name]())
    text = text * times
    fewest = bound.fewest(text)
    for plain in (False, True):
        tokenizer.encode_special_tokens = plain
        assert fewest <= len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", LAYOUTS)
def test_words_weigh_enough_to_refuse_a_text_many_times_too_long(name: str) -> None:
    bound, tokenizer = bound_of(LAYOUTS[name]())
    text = "the handed in the red band. " * 200
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert tokens / 8 < bound.fewest(text) <= tokens


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "aa"}, "content": ""}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False},
                    BYTE_LEVEL["pre_tokenizer"],
                ],
            }
        },
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [UNICODE_SCRIPTS, BYTE_LEVEL["pre_tokenizer"]]}},
        {"model": {**BYTE_LEVEL["model"], "end_of_word_suffix": "</w>"}},
    ],
)
def test_a_tokenizer_that_may_lose_text_has_no_bound(change: Layout) -> None:
    bound, _ = bound_of(byte_level_with(**change))
    assert bound.fewest("the and" * 1000) == 0
    assert bound.head("the and" * 1000, 5) == "the and" * 1000


def test_composing_shrinks_no_text_to_less_than_its_bound() -> None:
    """And never touches the characters that are weighed as they are."""
    longest: dict[str, int] = {}
    for code in range(0x110000):
        char = chr(code)
        parts = unicodedata.normalize("NFD", char)
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, 0), len(char.encode("utf-8", "surrogatepass")))
    for code in range(0x110000):
        char = chr(code)
        size = len(char.encode("utf-8", "surrogatepass"))
        parts = unicodedata.normalize("NFD", char)
        if size and unicodedata.normalize("NFC", char) == char:
            assert sum(longest[part] for part in parts) <= _NFC_SHRINKS * size
        if not 0xD800 <= code < 0xE000 and size == 3 and char.encode()[0] in _INERT:
            assert parts == char and not unicodedata.combining(char)


def test_composed_text_of_any_script_has_a_bound() -> None:
    bound, tokenizer = bound_of(LAYOUTS["composed"]())
    for text in ("кот сидит на столе " * 300, "日本語のテキスト" * 300, "plain words " * 300, "naïve café " * 300):
        tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert tokens / 200 < bound.fewest(text) <= tokens


def test_a_head_has_the_tokens_asked_for() -> None:
    bound, tokenizer = bound_of(BYTE_LEVEL)
    text = "The quick brown fox " * 5000
    head = bound.head(text, 100)
    assert text.startswith(head) and len(head) < 10000
    assert len(tokenizer.encode(head, add_special_tokens=False).ids) >= 100
    assert bound.head("short", 100) == "short"


def test_a_text_far_too_long_is_refused_unencoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(json.dumps(BYTE_LEVEL), TokenizerRecord(vocab_size=600))
    text = "many words " * 1000
    count = len(tokenizer.encode(text))
    assert len(tokenizer.encode(text, most=count)) == count
    assert len(tokenizer.encode(text, most=count - 1)) == count  # too near for the bound to tell
    with pytest.raises(TooManyTokensError, match=r"at least \d+ tokens; allowed: up to 100") as refused:
        tokenizer.encode(text, most=100)
    assert 100 < refused.value.at_least <= count
    with pytest.raises(ValueError, match="lone surrogate"):
        tokenizer.encode(text + "\ud800", most=100)


def test_the_first_tokens_of_a_text() -> None:
    tokenizer = Tokenizer(json.dumps(BYTE_LEVEL), TokenizerRecord(vocab_size=600))
    text = "many <|im_end|> words " * 1000
    whole = tokenizer.encode(text, allow_special=False)
    assert tokenizer.encode_head(text, 100)[:90].tolist() == whole[:90].tolist()
    assert len(tokenizer.encode_head(text, 100)) == 100
    assert (
        tokenizer.encode_head("<|im_end|>", 100).tolist()
        == tokenizer.encode("<|im_end|>", allow_special=False).tolist()
    )
