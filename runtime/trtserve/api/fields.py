"""Request fields beyond those this server acts on: harmless ones are ignored, the rest is refused, never dropped.

A field that would change the text or the shape of the answer, and that this server does not implement, is refused
unless it has the value that asks for nothing. A misspelt field is refused with a suggestion: a client that writes
``temprature`` must not get an answer at the default temperature.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from trtserve.api.errors import ApiError, unsupported

#: Accepted and ignored: they address the caller's account, logs, routing or billing, never the text.
IGNORED = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "parallel_tool_calls",
        "priority",
        "request_id",
        "include_reasoning",
    }
)

#: Not implemented: the values that ask for nothing, and what to say to any other value.
_GRAMMAR = "constrained output is not supported; ask for the format in the prompt and check the answer"
UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "response_format": (({"type": "text"},), _GRAMMAR),
    "structured_outputs": ((), _GRAMMAR),
    "guided_json": ((), _GRAMMAR),
    "guided_regex": ((), _GRAMMAR),
    "guided_choice": ((), _GRAMMAR),
    "guided_grammar": ((), _GRAMMAR),
    "functions": (([],), "not supported; use tools"),
    "function_call": (("none", "auto"), "not supported; use tools"),
    "modalities": ((["text"],), "only text is produced"),
    "audio": ((), "only text is produced"),
    "moderation": ((), "not supported"),
    "verbosity": (("medium",), "not supported"),
    "web_search_options": ((), "not supported"),
    "use_beam_search": ((False,), "beam search is not supported"),
    "length_penalty": ((1, 1.0), "belongs to beam search, which is not supported"),
    "early_stopping": ((False,), "belongs to beam search, which is not supported"),
    "best_of": ((1,), "not supported; ask for n choices and pick one"),
    "suffix": (("",), "insertion is not supported"),
    "prompt_logprobs": ((), "log-probabilities of the prompt are not supported"),
    "prompt_embeds": ((), "not supported; send text or tokens"),
    "bad_words": (([],), "not supported; use logit_bias of -100"),
    "allowed_token_ids": ((), "not supported; use logit_bias"),
    "logits_processors": (([],), "not supported"),
    "truncate_prompt_tokens": ((), "prompts are never cut; send one that fits"),
    "skip_special_tokens": ((True,), "special tokens are never part of the text"),
    "spaces_between_special_tokens": ((True,), "not supported"),
    "return_tokens_as_token_ids": ((False,), "not supported"),
    "return_token_ids": ((False,), "not supported"),
    "documents": (([],), "not supported; put documents into the messages or into chat_template_kwargs"),
    "chat_template": ((), "a request cannot bring its own template; use /v1/completions for a prompt of your own"),
    "mm_processor_kwargs": (({},), "only text is taken"),
    "kv_transfer_params": ((), "not supported"),
}


def known_fields(raw: Mapping[str, Any], accepted: Iterable[str]) -> dict[str, Any]:
    """The fields of ``raw`` that this server acts on, without nulls (null means not given).

    ``accepted`` are the endpoint's own fields; they come before the tables above. Raises ApiError for a field that
    is unknown, or unsupported with a value that asks for something.
    """
    accepted = frozenset(accepted)
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        if name in accepted:
            if value is not None:
                kept[name] = value
        elif name in IGNORED:
            continue
        elif name in UNSUPPORTED:
            neutral, why = UNSUPPORTED[name]
            if value is not None and not any(type(value) is type(x) and value == x for x in neutral):
                raise unsupported(name, why)
        else:
            near = difflib.get_close_matches(name[:64], accepted | IGNORED, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            shown = name if len(name) <= 64 else name[:61] + "..."
            raise ApiError(400, f"Unknown field: {shown}{hint}", param=shown, code="unknown_parameter")
    return kept
