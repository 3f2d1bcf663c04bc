"""Text to tokens and back, from an engine directory alone.

``decode`` is defined on bytes: the tokens' bytes one after the other, read as UTF-8 with U+FFFD for what is broken.
``StreamDecoder`` gives the same text piece by piece, whatever the pieces.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trtserve.chat_template import ChatTemplate, ChatTemplateError, RenderedTooLongError
from trtserve.engine_dir import TEMPLATE_NAME, TOKENIZER_DIR, TOKENIZER_NAME, EngineDirError, TokenizerRecord
from trtserve.token_bound import TokenBound
from trtserve.token_bytes import PieceDecoder, piece_decoder

__all__ = ["ChatTemplateError", "RenderedTooLongError", "StreamDecoder", "Tokenizer", "TooManyTokensError"]

#: Characters from which a text is encoded without Python's lock. A megabyte takes about a second, in which no other
#: thread would run; for a short text the way round costs more than it saves.
_LONG = 4096


class TooManyTokensError(ValueError):
    """A text with more tokens than were asked for at most. ``at_least``: how many it has, at the least."""

    def __init__(self, at_least: int, most: int) -> None:
        super().__init__(f"the text has at least {at_least} tokens; allowed: up to {most}")
        self.at_least = at_least


class Tokenizer:
    """An engine's tokenizer. Safe to share between threads."""

    def __init__(self, layout: str, record: TokenizerRecord, template: str | None = None) -> None:
        """``layout`` is the text of a ``tokenizer.json``. Raises ValueError when it cannot be used."""
        self.record = record
        self._layout = layout
        self._tokenizer = tokenizers.Tokenizer.from_str(layout)
        self._decoder: PieceDecoder = piece_decoder(json.loads(layout).get("decoder"))
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Control tokens: decoding with ``skip_special`` leaves them out."""
        self._bytes: dict[int, bytes] = {}
        self.chat_template = None if template is None else ChatTemplate(template, record.special_tokens)

    @classmethod
    def load(cls, engine_dir: Path, record: TokenizerRecord) -> Tokenizer:
        """The tokenizer of an engine directory. Raises EngineDirError, or ChatTemplateError for its template."""
        directory = engine_dir / TOKENIZER_DIR
        try:
            layout = (directory / TOKENIZER_NAME).read_text(encoding="utf-8")
            template = (directory / TEMPLATE_NAME).read_bytes().decode("utf-8") if record.chat_template else None
            return cls(layout, record, template)
        except ChatTemplateError:
            raise
        except Exception as e:  # the tokenizers library raises bare Exception
            raise EngineDirError(f"{directory}: the tokenizer cannot be used: {e}") from e

    @property
    def vocab_size(self) -> int:
        """Ids below this are tokens of the tokenizer; a model may have more rows than that."""
        return self.record.vocab_size

    def encode(
        self, text: str, *, add_bos: bool = False, allow_special: bool = True, most: int | None = None
    ) -> NDArray[np.int32]:
        """Tokens of ``text``, int32 ``[n]``.

        ``allow_special`` turns the written form of a control token into that token. A rendered chat template needs
        it; it then also holds inside the messages, as it does in transformers. Without it such text is plain text.
        ``add_bos`` puts the BOS token in front, once: not when the text already starts with it. ``most`` saves the
        work for a text that is far too long: TooManyTokensError is raised for one whose mere bytes prove that it has
        more tokens. Other texts come back whole, also with more than that. Raises ValueError for a lone surrogate,
        which is not text, and RuntimeError where the tokenizer itself fails.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise ValueError(f"text has a lone surrogate at character {e.start}, which cannot be encoded") from e
        # No character has more than four tokens in any text that has a bound.
        if most is not None and 4 * len(text) > most and (fewest := self._bound.fewest(text)) > most:
            raise TooManyTokensError(fewest, most)
        backend = self._tokenizer if allow_special else self._plain_text_tokenizer
        try:
            if len(text) < _LONG:
                ids = backend.encode(text, add_special_tokens=False).ids
            else:
                # The library keeps Python's lock while it encodes one text, but not while it encodes several.
                ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as e:
            if type(e).__name__ != "PanicException":
                raise
            # The library's own fault. It is no Exception, and would get past all who answer for a request.
            raise RuntimeError(f"the tokenizer failed on this text: {e}") from e
        bos = self.record.bos_token_id
        if add_bos and bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        return np.array(ids, dtype=np.int32)

    def encode_head(self, text: str, most: int) -> NDArray[np.int32]:
        """The first ``most`` tokens of a plain text, for a price that does not grow with the rest of it.

        The last of them may be others than those of the whole text: it is cut somewhere behind them. Raises ValueError
        for a lone surrogate.
        """
        return self.encode(self._bound.head(text, most), allow_special=False)[:most]

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text, in bytes; nothing for an id outside the vocabulary.

        Control tokens give their written form. A token may hold part of a character.
        """
        known = self._bytes.get(token_id)
        if known is None:
            if token_id in self._added:
                text, space = self._added[token_id], self._decoder.space
                known = (text.replace(space, " ") if space else text).encode("utf-8", "replace")
            else:
                piece = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
                known = b"" if piece is None else self._decoder.to_bytes(piece)
            self._bytes[token_id] = known
        return known

    def decode(
        self, ids: Sequence[int] | NDArray[np.integer[Any]], *, skip_special: bool = True, continuing: bool = False
    ) -> str:
        """The text of ``ids``. Broken UTF-8 becomes U+FFFD.

        A SentencePiece tokenizer writes the start of a text with a space that is not part of it, and decoding takes it
        off. ``continuing`` says that other text comes before, so that a leading space is kept.
        """
        decoder = StreamDecoder(self, skip_special=skip_special, continuing=continuing)
        return decoder.push(ids) + decoder.flush()

    def stream_decoder(self, *, skip_special: bool = True, continuing: bool = True) -> StreamDecoder:
        """A decoder for a sequence's output: by default text that continues a prompt, without control tokens."""
        return StreamDecoder(self, skip_special=skip_special, continuing=continuing)

    @property
    def strips_first_space(self) -> bool:
        """Whether a text's first space is the tokenizer's own (SentencePiece)."""
        return self._decoder.strips_first_space

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt text for ``messages``: see ``ChatTemplate.render``. Encode it with ``allow_special`` and no BOS.

        Raises ChatTemplateError, also when the engine has no template.
        """
        if self.chat_template is None:
            raise ChatTemplateError("this model has no chat template; use the completions API")
        return self.chat_template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **variables,
        )

    @cached_property
    def _bound(self) -> TokenBound:
        return TokenBound.of(json.loads(self._layout), self._tokenizer)

    @cached_property
    def _plain_text_tokenizer(self) -> tokenizers.Tokenizer:
        """A second instance, since the library keeps this choice in the tokenizer and not in the call."""
        plain = tokenizers.Tokenizer.from_str(self._layout)
        plain.encode_special_tokens = True
        return plain


class StreamDecoder:
    """Turns one sequence's tokens into text as they come, never splitting a character.

    The texts that ``push`` and ``flush`` return, joined, equal ``Tokenizer.decode`` of all the ids with the same
    options, for any division into pushes. Keeps at most three bytes between calls; a push costs its tokens' bytes.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continuing: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = tokenizer.strips_first_space and not continuing

    def push(self, ids: Iterable[int] | NDArray[np.integer[Any]]) -> str:
        """The whole characters that ``ids`` complete, possibly none."""
        data = b"".join(self._tokenizer.token_bytes(int(i)) for i in ids if int(i) not in self._skip)
        if data and self._drop_space:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The end of the text: U+FFFD when the last character is incomplete, else nothing."""
        return self._utf8.decode(b"", final=True)
