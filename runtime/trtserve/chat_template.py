"""Chat templates: a checkpoint's Jinja text, rendered as transformers renders it, in a sandbox.

A template is code from whoever made the checkpoint. It runs in Jinja's immutable sandbox and sees plain JSON data
only, with the names and filters that templates are written against: ``tojson`` (without HTML escapes),
``raise_exception``, ``strftime_now``, ``break`` and ``continue`` in loops, and the ``generation`` block, which marks
text for training and means nothing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARS = 1 << 24
"""A rendering longer than this is stopped: no context holds it, and a template can loop."""
_END = "\ue000continue here\ue000"
"""Put after the final message to find where it ends in the rendering. Private-use characters: no text has them."""
_NULL_CONTENT = re.compile(r"content['\"]?\]?\s+is\s+(not\s+)?none\b", re.IGNORECASE)
"""How a template tells a message without content from one whose content is empty."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""A message's reasoning, under the names that templates and clients use. The first is the standard one."""


class ChatTemplateError(Exception):
    """A chat template that does not compile, or messages it cannot render. The message is meant for the client."""


class RenderedTooLongError(ChatTemplateError):
    """A rendering that no context holds."""


class _GenerationBlock(Extension):
    tags = {"generation"}  # noqa: RUF012 - jinja declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Rendering changes nothing of it, so threads may share one."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        """``names`` are the special tokens a template may use, such as ``bos_token``. Raises ChatTemplateError."""
        self.source = source
        self._names = dict(names)
        self._knows_null_content = _NULL_CONTENT.search(source) is not None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as e:
            raise ChatTemplateError(f"the chat template does not compile: {e}") from e

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages``, each a mapping with a ``role`` and usually a ``content``.

        ``continue_final_message`` ends the prompt right after the final message's text, so that the model goes on
        with it; it excludes ``add_generation_prompt``. ``variables`` are passed to the template as they are. A key
        whose value is null counts as absent. A message that called tools often comes back without content: its content
        is null for a template that asks for that, and empty for one that cannot do without. Raises ChatTemplateError.
        """
        if not messages:
            raise ChatTemplateError("messages is empty; at least one is needed")
        plain = [_message(message) for message in messages]
        calling = [message for message in plain if message.get("tool_calls") and "content" not in message]
        if self._knows_null_content:
            for message in calling:
                message["content"] = None
        final = None
        if continue_final_message:
            if add_generation_prompt:
                raise ChatTemplateError("continue_final_message and add_generation_prompt exclude each other")
            final = _mark_end(plain[-1])
        context = {
            "documents": None,
            **self._names,
            **_plain(variables),
            "messages": plain,
            "tools": _plain(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._rendered(context)
        except ChatTemplateError:
            raise
        except Exception as e:  # a template can raise anything Python can: all of it concerns this request alone
            if not calling:
                raise _refused(e) from e
            for message in calling:
                message["content"] = ""
            try:
                text = self._rendered(context)
            except ChatTemplateError:
                raise
            except Exception:
                raise _refused(e) from e
        return text if final is None else _cut(text, final)

    def _rendered(self, context: Mapping[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate(context):
            size += len(part)
            if size > MAX_RENDERED_CHARS:
                raise RenderedTooLongError(f"the rendered prompt has more than {MAX_RENDERED_CHARS} characters")
            parts.append(part)
        return "".join(parts)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: plain data, no null keys, its reasoning under the names templates read."""
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"a message must be an object, not {type(message).__name__}")
    plain = {key: value for key, value in _plain(message).items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _refused(error: Exception) -> ChatTemplateError:
    return ChatTemplateError(f"the chat template refused the messages: {error}")


def _mark_end(message: dict[str, Any]) -> str:
    """Put the end mark and a space after the message's text, in place; returns the text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _END + " "
        return content
    if isinstance(content, list):
        for block in reversed(content):
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                text: str = block["text"]
                block["text"] = text + _END + " "
                return text
    raise ChatTemplateError("continue_final_message: the final message has no text to continue")


def _cut(rendered: str, final: str) -> str:
    """The rendering up to the end mark. A template that trims messages took the mark's space, and trims this too."""
    at = rendered.rfind(_END)
    if at < 0 or final.strip() not in rendered:
        raise ChatTemplateError("continue_final_message: the chat template does not show the final message as it is")
    kept = rendered[at + len(_END) :].startswith(" ")
    return rendered[:at] if kept else rendered[:at].rstrip()


def _plain(value: Any) -> Any:
    """A deep copy in plain JSON types: what a template sees can have no methods that act on the process."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise ChatTemplateError(f"messages may hold JSON values only, not {type(value).__name__}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
