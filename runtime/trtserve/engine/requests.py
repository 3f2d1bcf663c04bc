"""The door: what a request must satisfy before it may wait for a slot. Every refusal names the field and the limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.protocol import GenerationRequest, RequestError, Scope


def token_array(tokens: Sequence[int], vocab_size: int, param: str, *, most: int | None = None) -> NDArray[np.int32]:
    """``tokens``, or the first ``most`` of them, as int32 ``[n]``. Raises RequestError for what is no token id of the
    vocabulary."""
    try:
        array = np.asarray(tokens if most is None else tokens[:most])
    except (TypeError, ValueError, OverflowError) as e:
        raise RequestError(f"{param} must be a flat list of token ids: {e}", param) from e
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError(f"{param} must be a flat list of token ids (integers)", param)
    outside = (array < 0) | (array >= vocab_size)
    if outside.any():
        at = int(outside.argmax())
        raise RequestError(
            f"{param}[{at}] is {int(array[at])}, outside the vocabulary; allowed: 0 to {vocab_size - 1}", param
        )
    return array.astype(np.int32)


def prompt_too_long(tokens: str, max_seq_len: int, param: str = "prompt") -> RequestError:
    """A prompt of so many tokens, which a context of ``max_seq_len`` does not hold together with an output."""
    return RequestError(
        f"the prompt has {tokens} tokens; this engine's context holds {max_seq_len}, "
        "of which at least 1 is needed for the output",
        param,
    )


def output_budget(request: GenerationRequest, prompt_len: int, max_seq_len: int) -> int:
    """Most output tokens this request may have in a context of ``max_seq_len`` tokens. Raises RequestError."""
    if prompt_len == 0:
        raise RequestError("prompt is empty; at least one token is needed", "prompt")
    if prompt_len >= max_seq_len:
        raise prompt_too_long(str(prompt_len), max_seq_len)
    params = request.params
    room = max_seq_len - prompt_len
    if params.max_tokens is not None and params.max_tokens > room:
        raise RequestError(
            f"the prompt has {prompt_len} tokens and max_tokens is {params.max_tokens}, together "
            f"{prompt_len + params.max_tokens}; this engine's context holds {max_seq_len}, so max_tokens may be "
            f"at most {room}",
            "max_tokens",
        )
    budget = room if params.max_tokens is None else params.max_tokens
    if params.min_tokens > budget:
        raise RequestError(
            f"min_tokens is {params.min_tokens}, but the output may have at most {budget} tokens", "min_tokens"
        )
    return budget


def check_parameter_tokens(request: GenerationRequest, vocab_size: int) -> None:
    """Raises RequestError for a bias or stop token outside the vocabulary."""
    named: tuple[tuple[str, Iterable[int]], ...] = (
        ("logit_bias", request.params.logit_bias),
        ("stop_token_ids", request.params.stop_token_ids),
    )
    for param, tokens in named:
        for token in tokens:
            if token >= vocab_size:
                raise RequestError(
                    f"{param}: token {token} is outside the vocabulary; allowed: 0 to {vocab_size - 1}", param
                )


def check_scope(scope: Scope) -> None:
    """Raises RequestError for a scope that cannot name a partition: each part must be text."""
    if not isinstance(scope, Scope):
        raise RequestError(f"scope must be a Scope, not {type(scope).__name__}", "scope")
    for name in ("tenant", "adapter", "salt"):
        part = getattr(scope, name)
        if not isinstance(part, str):
            raise RequestError(f"scope.{name} must be text, not {type(part).__name__}", "scope")
        try:
            part.encode()
        except UnicodeEncodeError as e:
            raise RequestError(f"scope.{name} has a lone surrogate at character {e.start}", "scope") from e
