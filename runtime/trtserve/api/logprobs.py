"""Log-probabilities in OpenAI's two formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtserve.api.context import TextCodec
from trtserve.engine.protocol import TokenOut

#: What the API sends for minus infinity, which JSON cannot carry.
FLOOR = -9999.0


def _finite(logprob: float | None) -> float:
    return FLOOR if logprob is None or not logprob > FLOOR else logprob


def _entry(codec: TextCodec, token: int, logprob: float | None) -> dict[str, Any]:
    raw = codec.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}


def chat_logprobs(codec: TextCodec, tokens: Sequence[TokenOut], alternatives: int) -> dict[str, Any]:
    """The ``logprobs`` object of a chat choice: one entry per token, with ``alternatives`` most likely ones."""
    content = []
    for t in tokens:
        top = [_entry(codec, token, value) for token, value in t.top_logprobs[:alternatives]]
        content.append({**_entry(codec, t.token, t.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The ``logprobs`` object of completion choices, of which ``text_offset`` counts on over a stream's chunks."""

    def __init__(self, codec: TextCodec, alternatives: int) -> None:
        self._codec = codec
        self._alternatives = alternatives
        self._offset = 0

    def of(self, tokens: Sequence[TokenOut]) -> dict[str, Any]:
        """The object for the next ``tokens``. A token is among its own ``top_logprobs``: they can be one more."""
        texts, values, offsets, tops = [], [], [], []
        for t in tokens:
            entry = _entry(self._codec, t.token, t.logprob)
            texts.append(entry["token"])
            values.append(entry["logprob"])
            offsets.append(self._offset)
            self._offset += len(entry["token"])
            top: dict[str, float] = {}
            for token, value in (*t.top_logprobs[: self._alternatives], (t.token, t.logprob)):
                # Several tokens can read alike when they are part of a character; the likeliest speaks for them.
                top.setdefault(_entry(self._codec, token, value)["token"], _finite(value))
            tops.append(top)
        return {"tokens": texts, "token_logprobs": values, "text_offset": offsets, "top_logprobs": tops}
