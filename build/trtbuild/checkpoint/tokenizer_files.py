"""The tokenizer as it travels in an engine directory: ``tokenizer.json``, the chat template and a record of both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from trtbuild.checkpoint.base import CheckpointError
from trtserve.engine_dir import TEMPLATE_NAME, TOKENIZER_NAME, TokenizerRecord
from trtserve.token_bytes import piece_decoder

MAX_TEMPLATE_BYTES = 1 << 20
"""No chat template in use comes near this; a larger one is a corrupt file or an attack on whoever compiles it."""

TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
)
"""Control tokens that always end a turn or a document, in every vocabulary that has them as control tokens.

Checkpoints often name only one of theirs as EOS; a chat that runs past another never stops.
"""


@dataclass
class TokenizerFiles:
    """A tokenizer read from a checkpoint, ready to be written. ``where`` names the checkpoint in errors."""

    where: str
    tokenizer: Tokenizer
    bos_token_id: int | None = None
    add_bos: bool = False
    eos_token_ids: tuple[int, ...] = ()
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None

    def save(self, directory: Path, rows: int) -> TokenizerRecord:
        """Write the files into ``directory``; returns the record. Padding and truncation are taken out.

        ``rows`` is the model's vocabulary size. Raises CheckpointError when the tokenizer has tokens beyond it, which
        no embedding exists for, or when serving could not turn its tokens back into text.
        """
        beyond = [text for text, token_id in self.tokenizer.get_vocab().items() if token_id >= rows]
        if beyond:
            raise CheckpointError(
                f"{self.where}: the tokenizer has {len(beyond)} tokens beyond the model's {rows}, {beyond[0]!r} for one"
            )
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        layout = json.loads(self.tokenizer.to_str())
        try:
            piece_decoder(layout.get("decoder"))
        except ValueError as e:
            raise CheckpointError(f"{self.where}: tokenizer.json: {e}") from e
        text = json.dumps(layout, ensure_ascii=False, separators=(",", ":"))
        (directory / TOKENIZER_NAME).write_text(text + "\n", encoding="utf-8")
        if self.chat_template is not None:
            size = len(self.chat_template.encode("utf-8", "surrogatepass"))
            if size > MAX_TEMPLATE_BYTES:
                raise CheckpointError(
                    f"{self.where}: the chat template has {size} bytes; at most {MAX_TEMPLATE_BYTES} are accepted"
                )
            (directory / TEMPLATE_NAME).write_text(self.chat_template, encoding="utf-8", newline="")
        return TokenizerRecord(
            vocab_size=self.tokenizer.get_vocab_size(with_added_tokens=True),
            bos_token_id=self.bos_token_id,
            add_bos=self.add_bos and self.bos_token_id is not None,
            eos_token_ids=self.eos_token_ids,
            special_tokens=self.special_tokens,
            chat_template=self.chat_template is not None,
        )


def end_tokens(tokenizer: Tokenizer, named: Iterable[int | None]) -> tuple[int, ...]:
    """The ids that end a sequence: those the checkpoint names, then its control tokens that always do."""
    control = {
        token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    ids = [token_id for token_id in named if token_id is not None]
    ids += [control[text] for text in TURN_ENDS if text in control]
    return tuple(dict.fromkeys(ids))
