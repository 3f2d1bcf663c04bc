"""From messages and prompts to tokens. Slow on long texts, so routes call these from a worker thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trtserve.api.context import ServerContext
from trtserve.api.errors import invalid
from trtserve.api.schema import ChatBody, CompletionBody, Message, TokenizeBody
from trtserve.tokenizer import ChatTemplateError

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
        raise invalid(str(e), "messages", "chat_template_error") from e
    except RecursionError:
        raise invalid("the messages or tools are nested too deeply", "messages", "chat_template_error") from None
    # The template writes its own BOS.
    tokens: list[int] = context.codec.encode(text, add_bos=False).tolist()
    return tokens


def text_tokens(context: ServerContext, text: str, add_bos: bool | None) -> list[int]:
    """The tokens of a plain text. ``add_bos`` None does what the checkpoint says."""
    default = context.engine.manifest.tokenizer.add_bos
    tokens: list[int] = context.codec.encode(text, add_bos=default if add_bos is None else add_bos).tolist()
    return tokens


def prompt_tokens(context: ServerContext, body: CompletionBody) -> list[list[int]]:
    """The tokens of each prompt of a completion request."""
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            prompts.append(text_tokens(context, prompt, body.add_special_tokens))
        else:
            check_vocabulary(context, prompt, "prompt")
            prompts.append(list(prompt))
    return prompts


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
        raise invalid(
            f"This model's context is {context.max_context} tokens and the prompt has {len(tokens)}; "
            f"allowed: up to {context.max_context - 1}",
            param,
            "context_length_exceeded",
        )
    room = context.max_context - len(tokens)
    if max_tokens is not None and max_tokens > room:
        raise invalid(
            f"This model's context is {context.max_context} tokens; the prompt has {len(tokens)} and max_tokens is "
            f"{max_tokens}, together {len(tokens) + max_tokens}; allowed: max_tokens up to {room}",
            "max_tokens",
            "context_length_exceeded",
        )
