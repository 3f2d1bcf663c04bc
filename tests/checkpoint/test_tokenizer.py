"""Tokenizers: from GGUF metadata and Hugging Face directories into an engine directory, to tokens and back."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trtbuild.checkpoint import CheckpointError
from trtbuild.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from trtbuild.checkpoint.hf_tokenizer import tokenizer_from_hf
from trtbuild.checkpoint.pre_tokenizers import BY_NAME
from trtserve.engine_dir import EngineDirError, TokenizerRecord
from trtserve.token_bytes import piece_decoder
from trtserve.tokenizer import StreamDecoder, Tokenizer

from .vocabularies import TEMPLATE, byte_level_meta, sentencepiece_meta

TRICKY = [
    "x:\n    1 two\n\t 22  33",
    "it's WE'LL don't 'S 12345678 ½Ⅷ١٢٣",
    "  leading\r\n\r\n  and trailing   \n",
    "naïve — “x” 日本語 한국어 👩‍👩‍👧 \u200b\u00a0 e\u0301",
    "snake_case camelCase HTMLParser /path/to//file [](){}!!??",
    "",
    "\x00\x01\x7f",
]


def engine(meta: dict[str, Any], directory: Path) -> Tokenizer:
    (directory / "tokenizer").mkdir()
    record = tokenizer_from_gguf(meta, "test").save(directory / "tokenizer", 10**6)
    return Tokenizer.load(directory, record)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return engine(byte_level_meta(), tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return engine(sentencepiece_meta(), tmp_path_factory.mktemp("spm"))


def test_the_record(bpe: Tokenizer, spm: Tokenizer) -> None:
    size = len(byte_level_meta()["tokenizer.ggml.tokens"])
    assert bpe.record == TokenizerRecord(
        vocab_size=size,
        bos_token_id=1,
        add_bos=False,
        eos_token_ids=(2, 0),
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        chat_template=True,
    )
    assert bpe.vocab_size == size
    assert (spm.record.bos_token_id, spm.record.add_bos, spm.record.eos_token_ids) == (1, True, (2,))
    assert spm.record.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert not spm.record.chat_template


def test_smollm_cuts_digits_one_by_one(bpe: Tokenizer) -> None:
    pieces = [bpe.token_bytes(i) for i in bpe.encode("x:\n    1 two\n\t 22  33")]
    text = b"".join(pieces)
    assert text == b"x:\n    1 two\n\t 22  33"
    assert [piece for piece in pieces if any(48 <= byte < 58 for byte in piece)] == [b"1", b"2", b"2", b"3", b"3"]


def test_pre_tokenizers_cut_like_the_models_own() -> None:
    contraction = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def split(pattern: str) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    own = {
        "gpt-2": byte_level,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
        "llama-bpe": split(contraction + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + rest),
        "qwen2": split(contraction + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + rest),
    }
    for name, reference in own.items():
        for text in TRICKY:
            built = [piece for piece, _ in BY_NAME[name].build().pre_tokenize_str(text)]
            assert built == [piece for piece, _ in reference.pre_tokenize_str(text)], (name, text)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_pre_tokenizer_keeps_the_text(name: str, tmp_path: Path) -> None:
    tokenizer = engine({**byte_level_meta(), "tokenizer.ggml.pre": name}, tmp_path)
    for text in TRICKY:
        expected = text.replace("e\u0301", "é") if BY_NAME[name].nfc else text
        assert tokenizer.decode(tokenizer.encode(text)) == expected


def test_case_changes_cut_words_where_the_model_says_so() -> None:
    for name, text, expected in (
        ("tekken", "camelCase HTMLParser", ["camel", "Case", "ĠHTMLParser"]),
        ("tekken", "it's", ["it", "'s"]),
        ("gpt-4o", "it's 1234", ["it's", "Ġ", "123", "4"]),
        ("default", "1234 a", ["123", "4", "Ġa"]),
    ):
        assert [piece for piece, _ in BY_NAME[name].build().pre_tokenize_str(text)] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "exotic"}, "tokenizer.ggml.pre is 'exotic'.*smollm"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is missing"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model is 't5'; supported are gpt2, llama"),
        ({"tokenizer.ggml.tokens": []}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": None}, "holds a token twice"),
        ({"tokenizer.ggml.token_type": [1]}, "has 1 entries"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000, outside the vocabulary"),
        ({"tokenizer.ggml.merges": ["ab"]}, r"merges\[0\] is 'ab', expected two tokens"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "do not fit the vocabulary"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_gguf({**byte_level_meta(), **change}, "test")


def test_sentencepiece_needs_its_scores() -> None:
    for change in ({"tokenizer.ggml.scores": None}, {"tokenizer.ggml.remove_extra_whitespaces": True}):
        with pytest.raises(CheckpointError, match=r"scores|remove_extra_whitespaces"):
            tokenizer_from_gguf({**sentencepiece_meta(), **change}, "test")


def test_a_huge_template_is_refused(tmp_path: Path) -> None:
    files = tokenizer_from_gguf({**byte_level_meta(), "tokenizer.chat_template": "x" * (1 << 21)}, "test")
    with pytest.raises(CheckpointError, match="the chat template has 2097152 bytes; at most 1048576"):
        files.save(tmp_path, 10**6)


def test_tokens_without_an_embedding_are_refused(tmp_path: Path) -> None:
    files = tokenizer_from_gguf(byte_level_meta(), "test")
    rows = len(byte_level_meta()["tokenizer.ggml.tokens"]) - 1
    with pytest.raises(CheckpointError, match=f"has 1 tokens beyond the model's {rows}, '<think é>' for one"):
        files.save(tmp_path, rows)
    assert not list(tmp_path.iterdir())


def test_control_tokens_only_where_allowed(bpe: Tokenizer) -> None:
    assert bpe.encode("<|im_end|>").tolist() == [2]
    plain = bpe.encode("<|im_end|>", allow_special=False)
    assert 2 not in plain
    assert bpe.decode(plain) == "<|im_end|>"
    assert bpe.encode("<|im_end|>").dtype == np.int32
    assert bpe.encode("").shape == (0,)


def test_control_tokens_are_left_out_of_the_text(bpe: Tokenizer) -> None:
    ids = bpe.encode("a<|im_end|>b<think é>")
    assert bpe.decode(ids) == "ab<think é>"
    assert bpe.decode(ids, skip_special=False) == "a<|im_end|>b<think é>"


def test_bos_is_added_once(bpe: Tokenizer) -> None:
    assert bpe.encode("a", add_bos=True).tolist() == [1, *bpe.encode("a")]
    assert bpe.encode("<|im_start|>a", add_bos=True).tolist() == [1, *bpe.encode("a")]


def test_lone_surrogates_are_no_text(bpe: Tokenizer) -> None:
    with pytest.raises(ValueError, match="lone surrogate at character 1"):
        bpe.encode("a\ud800")


@pytest.mark.parametrize("allow_special", [True, False])
def test_long_texts_have_the_tokens_of_short_ones(
    bpe: Tokenizer, spm: Tokenizer, monkeypatch: pytest.MonkeyPatch, allow_special: bool
) -> None:
    """They go through a call of the library that lets other threads run."""
    text = "  In 1987, naïve  façades; 12345 <|im_end|>\n\tdef f(x):\n</s>" * 200
    for tokenizer in (bpe, spm):
        long = tokenizer.encode(text, add_bos=True, allow_special=allow_special)
        with monkeypatch.context() as patched:
            patched.setattr("trtserve.tokenizer._LONG", len(text) + 1)
            short = tokenizer.encode(text, add_bos=True, allow_special=allow_special)
        assert long.dtype == short.dtype and long.tolist() == short.tolist()


def test_ids_outside_the_vocabulary_add_nothing(bpe: Tokenizer) -> None:
    assert bpe.token_bytes(bpe.vocab_size + 5) == b""
    assert bpe.token_bytes(-1) == b""


def sentencepiece_by_hand(text: str, meta: dict[str, Any]) -> list[str]:
    """SentencePiece BPE as its rule says: join the neighbours that form the best-scored piece, the leftmost first."""
    score = dict(zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"], strict=True))
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(-score[a + b], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in score]
        if not pairs:
            break
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    pieces = []
    for symbol in symbols:
        pieces += [symbol] if symbol in score else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return pieces


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abthendrio é2.,▁ xZ日", min_size=1, max_size=30))
def test_sentencepiece_equals_the_rule(text: str) -> None:
    meta = sentencepiece_meta()
    tokenizer = tokenizer_from_gguf(meta, "test").tokenizer
    assert tokenizer.encode(text, add_special_tokens=False).tokens == sentencepiece_by_hand(text, meta)


def test_sentencepiece_spaces(spm: Tokenizer) -> None:
    ids = spm.encode("the and")
    assert [spm.token_bytes(i) for i in ids] == [b" the", b" and"]
    assert spm.decode(ids) == "the and"
    assert spm.decode(ids, continuing=True) == " the and"
    assert spm.decode(spm.encode("  the")) == "  the"
    assert spm.decode(spm.encode("[INST] the")) == "[INST]  the"  # a prefix space after each added token, as in GGUF
    assert spm.decode(spm.encode("日 é")) == "日 é"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_byte_level_round_trip(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text, allow_special=False)) == text


@settings(max_examples=300, deadline=None)
@given(data=st.data(), which=st.booleans(), skip=st.booleans(), continuing=st.booleans())
def test_a_stream_in_any_pieces_is_the_decoded_text(
    bpe: Tokenizer, spm: Tokenizer, data: st.DataObject, which: bool, skip: bool, continuing: bool
) -> None:
    tokenizer = bpe if which else spm
    text = data.draw(st.text(max_size=20))
    noise = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size + 3), max_size=30))
    ids = [*tokenizer.encode(text).tolist(), *noise]
    at = data.draw(st.integers(0, len(ids)))
    ids = ids[at:] + ids[:at]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    decoder = StreamDecoder(tokenizer, skip_special=skip, continuing=continuing)
    parts = [decoder.push(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    whole = "".join(parts) + decoder.flush()
    assert whole == tokenizer.decode(ids, skip_special=skip, continuing=continuing)
    raw = b"".join(tokenizer.token_bytes(i) for i in ids if not (skip and i in tokenizer.special_ids))
    if tokenizer.strips_first_space and not continuing:
        raw = raw.removeprefix(b" ")
    assert whole == raw.decode("utf-8", "replace")


def test_a_character_comes_out_whole(bpe: Tokenizer) -> None:
    emoji = "👩‍👩‍👧"
    ids = [i for byte in emoji.encode() for i in byte_ids(bpe, byte)]
    decoder = StreamDecoder(bpe)
    parts = [decoder.push([i]) for i in ids]
    assert "".join(parts) == emoji
    assert all("\ufffd" not in part for part in parts)
    assert [len(part) for part in parts[:4]] == [0, 0, 0, 1]
    assert decoder.flush() == ""
    decoder.push(ids[:2])
    assert decoder.flush() == "\ufffd"


def test_output_continues_its_prompt(bpe: Tokenizer, spm: Tokenizer) -> None:
    for tokenizer in (bpe, spm):
        decoder = tokenizer.stream_decoder()
        ids = [*tokenizer.encode(" the and"), *tokenizer.record.eos_token_ids[:1]]
        assert decoder.push(ids) + decoder.flush() == tokenizer.decode(ids, continuing=True)
    assert spm.stream_decoder().push(spm.encode("the")) == " the"
    assert spm.stream_decoder(continuing=False).push(spm.encode("the")) == "the"


def byte_ids(tokenizer: Tokenizer, byte: int) -> list[int]:
    return [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte])][:1]


def test_broken_bytes_decode_like_the_tokenizers_library(bpe: Tokenizer) -> None:
    backend = tokenizer_from_gguf(byte_level_meta(), "test").tokenizer
    rng = np.random.default_rng(5)
    single = [byte_ids(bpe, byte)[0] for byte in range(256)]
    for _ in range(300):
        ids = rng.choice(single[0x70:], 12).tolist()
        assert bpe.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": [{"type": "CTC"}]}, {"type": "Fuse"}],
)
def test_decoders_that_are_not_byte_by_byte_are_refused(decoder: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match="is not supported"):
        piece_decoder(decoder)


def test_a_broken_engine_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    record = TokenizerRecord(vocab_size=3)
    with pytest.raises(EngineDirError, match="cannot be used"):
        Tokenizer.load(tmp_path, record)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineDirError, match="cannot be used"):
        Tokenizer.load(tmp_path, record)


def hf_directory(directory: Path, **settings: Any) -> Path:
    directory.mkdir()
    tokenizer = tokenizer_from_gguf(byte_level_meta(), "test").tokenizer
    tokenizer.enable_padding(length=40)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(directory / "tokenizer.json"))
    values = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(values))
    return directory


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    source = hf_directory(tmp_path / "hf", chat_template=TEMPLATE)
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    engine_dir = tmp_path / "engine" / "tokenizer"
    engine_dir.mkdir(parents=True)
    record = tokenizer_from_hf(source, {"eos_token_id": 9, "bos_token_id": 5}).save(engine_dir, 10**6)
    assert record.eos_token_ids == (7, 2, 9, 0)
    assert (record.bos_token_id, record.add_bos) == (1, False)
    assert record.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer = Tokenizer.load(engine_dir.parent, record)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"), chat_template=TEMPLATE)
    for text in TRICKY:  # and neither padded to 40 nor cut to 5 tokens
        assert tokenizer.encode(text).tolist() == reference(text, padding=False, truncation=False).input_ids
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.source == TEMPLATE


def test_where_a_chat_template_is_looked_for(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    source = hf_directory(tmp_path / "hf", chat_template=named)
    assert tokenizer_from_hf(source, {}).chat_template == "D"
    (source / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert tokenizer_from_hf(source, {}).chat_template == "J"
    (source / "chat_template.jinja").write_text("F\n")
    assert tokenizer_from_hf(source, {}).chat_template == "F\n"
    with pytest.raises(CheckpointError, match=r"\['tool_use'\] but no 'default'"):
        tokenizer_from_hf(hf_directory(tmp_path / "other", chat_template=named[:1]), {})


def test_whether_a_prompt_gets_bos(tmp_path: Path) -> None:
    assert tokenizer_from_hf(hf_directory(tmp_path / "a", add_bos_token=True), {}).add_bos
    source = hf_directory(tmp_path / "b")
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.save(str(source / "tokenizer.json"))
    assert tokenizer_from_hf(source, {}).add_bos
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>", "add_bos_token": False}))
    assert not tokenizer_from_hf(source, {}).add_bos


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json, tokenizer\.model or vocab\.json"):
        tokenizer_from_hf(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        tokenizer_from_hf(tmp_path, {})


def test_vocabulary_and_merges_are_converted(tmp_path: Path) -> None:
    """Old directories have vocab.json and merges.txt alone; transformers knows which tokenizer they meant."""
    meta = byte_level_meta("qwen2")
    vocab = {token: i for i, token in enumerate(meta["tokenizer.ggml.tokens"][:-1])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(meta["tokenizer.ggml.merges"]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    converted = tokenizer_from_hf(tmp_path, {})
    built = tokenizer_from_gguf(meta, "test").tokenizer
    for text in TRICKY:
        assert converted.tokenizer.encode(text).ids == built.encode(text).ids


def test_a_panic_of_the_library_is_an_error_like_any_other(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As the library raises it: no Exception, and nowhere to be imported from."""

    class Failing:
        error: type[BaseException] = PanicException

        def encode(self, *_: object, **__: object) -> None:
            raise self.error("bad split")

        encode_batch_fast = encode

    failing = Failing()
    monkeypatch.setattr(bpe, "_tokenizer", failing)
    for text in ("x", "x" * 10000):
        with pytest.raises(RuntimeError, match="the tokenizer failed on this text: bad split"):
            bpe.encode(text)
    failing.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        bpe.encode("x")
