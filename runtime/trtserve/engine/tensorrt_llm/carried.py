"""What a request carries to the workers beside its tokens: its predicted output, and where its text ends.

TensorRT-LLM takes one object of its caller's along with a request, its conversation parameters, and hands it to every
rank together with the request. They are meant for routing by a conversation's id, which is off unless asked for, and
which nothing here asks for. So what a drafter must know travels as that id: a text, different for every request, so
that no two requests are ever one conversation. Every rank learns the same at the same time, as they must to draft the
same. Where the installed version has no such parameter nothing is carried: predictions are then not copied from, and a
generation that stop strings end leaves nothing in the shared cache.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.drafting import TextDecoder
from trtserve.engine.emit import TextStream

_PREFIX = "trtlookup:"

#: Makes TensorRT-LLM's conversation parameters of an id.
Carrier = Callable[[str], Any]


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


@dataclass(frozen=True)
class Carried:
    """A request's part that its worker has no other way to learn."""

    prediction: NDArray[np.int32] = field(default_factory=_no_tokens)
    """The predicted output, int32 ``[n]``."""
    stop: tuple[str, ...] = ()
    """Texts that end the output. Only the serving side looks for them; the executor runs on until it is told."""
    end_tokens: tuple[int, ...] = ()
    """Tokens that end the output and that the executor does not know as such."""
    min_tokens: int = 0
    """Output tokens before which no stop string counts."""

    @property
    def worth_it(self) -> bool:
        return bool(len(self.prediction) or self.stop or self.end_tokens)

    def to_id(self) -> str:
        """A conversation id that says all of it, and is nobody else's."""
        prediction = base64.b64encode(self.prediction.astype("<i4").tobytes()).decode()
        parts = [secrets.token_hex(8), prediction, list(self.stop), list(self.end_tokens), self.min_tokens]
        return _PREFIX + json.dumps(parts, separators=(",", ":"))

    @classmethod
    def of(cls, request: Any) -> Carried:
        """What a worker's ``LlmRequest`` carries; nothing where it carries nothing, or something of others."""
        carried = getattr(getattr(request, "py_conversation_params", None), "conversation_id", None)
        if not isinstance(carried, str) or not carried.startswith(_PREFIX):
            return cls()
        _, prediction, stop, ends, min_tokens = json.loads(carried.removeprefix(_PREFIX))
        tokens = np.frombuffer(base64.b64decode(prediction), "<i4").astype(np.int32)
        return cls(tokens, tuple(stop), tuple(ends), min_tokens)

    def end_of(self, output: Sequence[int], decoder: TextDecoder) -> int | None:
        """How many of the ``output`` tokens the serving side kept, where it ended the generation; None: it did not.

        ``decoder`` turns the output into text, from its first token on.
        """
        text = TextStream(decoder, self.stop)
        for i, token in enumerate(output):
            if token in self.end_tokens:
                return i + 1
            if self.stop and text.push((token,), None, i >= self.min_tokens) is not None:
                return i + 1
        return None


def find_carrier(llm: Any) -> Carrier | None:
    """How requests of ``llm`` carry something; None where the installed TensorRT-LLM has no conversation parameters."""
    if "conversation_params" not in inspect.signature(llm.generate_async).parameters:
        return None
    try:
        made: Any = importlib.import_module("tensorrt_llm.conversation_params").ConversationParams
    except (ImportError, AttributeError):
        return None
    return lambda conversation_id: made(conversation_id=conversation_id)
