"""From messages and prompts to tokens. Slow on long texts, so routes call these from a worker thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trtserve.api.context import ServerContext
from trtserve.api.errors import ApiError, invalid
from trtserve.api.schema import ChatBody, CompletionBody, Message, TokenizeBody
from trtserve.tokenizer import ChatTemplateError, RenderedTooLongError, TooManyTokensError

#: Names that have a field of their own, or none.
_NOT_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "self"})


def template_message(message: Message) -> dict[str, Any]:
    """A message as chat templates expect it: tool-call arguments are objects there, a JSON string in the API."""
    fields = message.model_dump(exclude_unset=True)
    if message.role == "developer":
        # OpenAI's newer name for the same role; templates know the older one.
        fields["role"] = "system"
    fields.setdefault("content", None)
    for call in fields.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, dict) and isinstance(arguments := function.get("arguments"), str):
            try:
                parsed = json.loads(arguments)
            except ValueError:
                continue
            if isinstance(parsed, dict):
                function["arguments"] = parsed
    if fields["content"] is None and not fields.get("tool_calls"):
        fields["content"] = ""
    return fields


def chat_tokens(context: ServerContext, body: ChatBody | TokenizeBody) -> list[int]:
    """The tokens of a conversation. Raises ApiError 400 where the template refuses it."""
    assert body.messages is not None
    variables = dict(body.chat_template_kwargs)
    if isinstance(body, ChatBody) and body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    tools = body.tools
    if isinstance(body, ChatBody) and body.tool_choice == "none":
        tools = None
    if reserved := variables.keys() & _NOT_VARIABLES:
        raise invalid(f"{min(reserved)} cannot be set here", "chat_template_kwargs")
    generation_prompt = body.add_generation_prompt
    try:
        text = context.codec.apply_chat_template(
            [template_message(m) for m in body.messages],
            tools=tools or None,
            add_generation_prompt=not body.continue_final_message if generation_prompt is None else generation_prompt,
            continue_final_message=body.continue_final_message,
            **variables,
        )
    except ChatTemplateError as e:
        code = "context_length_exceeded" if isinstance(e, RenderedTooLongError) else "chat_template_error"
        raise invalid(str(e), "messages", code) from e
    except RecursionError:
        raise invalid("the messages or tools are nested too deeply", "messages", "chat_template_error") from None
    # The template writes its own BOS.
    return _encoded(context, text, "messages", add_bos=False)


def text_tokens(context: ServerContext, text: str, add_bos: bool | None) -> list[int]:
    """The tokens of a plain text. ``add_bos`` None does what the checkpoint says. Raises ApiError 400 for a text
    that no context holds."""
    default = context.engine.manifest.tokenizer.add_bos
    return _encoded(context, text, "prompt", add_bos=default if add_bos is None else add_bos)


def prompt_tokens(context: ServerContext, body: CompletionBody) -> list[list[int]]:
    """The tokens of each prompt of a completion request. Raises ApiError 400 at the first that does not fit, before the
    next is looked at."""
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            tokens = text_tokens(context, prompt, body.add_special_tokens)
            check_fits(context, tokens, "prompt", body.max_tokens_asked)
        else:
            tokens = list(prompt)
            check_fits(context, tokens, "prompt", body.max_tokens_asked)
            check_vocabulary(context, tokens, "prompt")
        prompts.append(tokens)
    return prompts


def _encoded(context: ServerContext, text: str, param: str, *, add_bos: bool) -> list[int]:
    try:
        tokens: list[int] = context.codec.encode(text, add_bos=add_bos, most=context.max_context - 1).tolist()
    except TooManyTokensError as e:
        raise too_long(context, f"at least {e.at_least}", param) from None
    return tokens


def too_long(context: ServerContext, tokens: str, param: str) -> ApiError:
    """400: a prompt of so many tokens, which no context holds together with an output."""
    return invalid(
        f"This model's context is {context.max_context} tokens and the prompt has {tokens}; "
        f"allowed: up to {context.max_context - 1}",
        param,
        "context_length_exceeded",
    )


def check_vocabulary(context: ServerContext, tokens: Sequence[int], param: str) -> None:
    """Raises ApiError 400 for a token id that the model does not have."""
    size = context.engine.manifest.model.vocab_size
    for token in tokens:
        if not 0 <= token < size:
            raise invalid(f"token {token} is outside the vocabulary; allowed: 0 to {size - 1}", param)


def check_fits(context: ServerContext, tokens: Sequence[int], param: str, max_tokens: int | None) -> None:
    """Raises ApiError 400 for a prompt that is empty, or that the context cannot hold together with its output."""
    if not tokens:
        raise invalid("the prompt is empty: it has no token to go on from", param)
    if len(tokens) >= context.max_context:
        raise too_long(context, str(len(tokens)), param)
    room = context.max_context - len(tokens)
    if max_tokens is not None and max_tokens > room:
        raise invalid(
            f"This model's context is {context.max_context} tokens; the prompt has {len(tokens)} and max_tokens is "
            f"{max_tokens}, together {len(tokens) + max_tokens}; allowed: max_tokens up to {room}",
            "max_tokens",
            "context_length_exceeded",
        )
