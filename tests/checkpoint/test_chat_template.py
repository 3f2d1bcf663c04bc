"""Chat templates render what transformers renders, and cannot do more than render."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from trtserve.chat_template import ChatTemplate, ChatTemplateError

from .vocabularies import TEMPLATE

TOOLS_TEMPLATE = """\
{%- if tools %}
    {{- 'TOOLS\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last=none) %}
{% for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.reasoning_content is defined %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}
    {%- if message.content is string %}
        {{- bos_token + message.role + ': ' + message.content | trim }}
    {%- else %}
        {%- for block in message.content or [] %}{{- block.text }}{%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}{{- call | tojson(indent=2) }}{%- endfor %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- '[a]' }}{%- endgeneration %}
    {%- endif %}
    {%- set ns.last = message.role %}
{% endfor %}
{%- if add_generation_prompt and ns.last != 'assistant' %}{{- 'assistant: ' }}{%- endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<no>' }}{%- endif %}
"""
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<é> & 'x'", "parameters": {"a": [1, None]}}}]
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": "  hi  "}],
    "turns": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "<b>é</b> 🙂"},
        {"role": "assistant", "content": "ok\n  then  ", "reasoning": "hmm"},
    ],
    "calls": [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": None,
            "name": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": "<é>", "n": 1.5}}}],
        },
        {"role": "tool", "content": "result"},
    ],
}


def by_transformers(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    rendered, _ = render_jinja_template(conversations=[plain], chat_template=template, **NAMES, **options)
    text: str = rendered[0]
    return text


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("chat", CHATS)
def test_renders_what_transformers_renders(chat: str, tools: Any, prompt: bool, options: dict[str, Any]) -> None:
    ours = ChatTemplate(TOOLS_TEMPLATE, NAMES).render(CHATS[chat], tools=tools, add_generation_prompt=prompt, **options)
    assert ours == by_transformers(TOOLS_TEMPLATE, CHATS[chat], tools=tools, add_generation_prompt=prompt, **options)


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        # Cannot do without.
        ("{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}", "user:x;assistant:;tool:y;"),
        # Asks for null.
        (
            "{% for m in messages %}{% if m['content'] is none %}calls {{ m.tool_calls[0].id }};"
            "{% else %}{{ m.content }};{% endif %}{% endfor %}",
            "x;calls 1;y;",
        ),
        ("{% for m in messages %}{{ m.content is defined }} {% endfor %}", "True False True "),
    ],
)
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_a_call_of_tools_comes_back_without_content(source: str, rendered: str, content: dict[str, None]) -> None:
    call = {"role": "assistant", **content, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]}
    messages = [{"role": "user", "content": "x"}, call, {"role": "tool", "content": "y"}]
    assert ChatTemplate(source, NAMES).render(messages) == rendered


def test_the_first_refusal_is_the_one_that_is_told() -> None:
    template = ChatTemplate("{{ messages[0].content + messages[0].wanted + 1 }}", NAMES)
    with pytest.raises(ChatTemplateError, match="has no attribute 'content'"):
        template.render([{"role": "assistant", "tool_calls": [{"id": "1"}]}])


@pytest.mark.parametrize("template", [TEMPLATE, TOOLS_TEMPLATE])
@pytest.mark.parametrize("content", ["def f(x):\n    ", "done", "  spaces both ends  ", "two\n\n"])
def test_continuing_the_final_message(content: str, template: str) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": content}]
    ours = ChatTemplate(template, NAMES).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == by_transformers(template, messages, continue_final_message=True)
    assert ours.endswith(content if template == TEMPLATE else content.strip())
    assert messages[-1]["content"] == content


def test_continuing_a_message_of_blocks() -> None:
    messages = [{"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]}]
    ours = ChatTemplate(TOOLS_TEMPLATE, NAMES).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert ours == by_transformers(TOOLS_TEMPLATE, messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "messages", "options", "message"),
    [
        (TEMPLATE, [], {}, "messages is empty"),
        (TEMPLATE, [{"role": "user"}], {}, "refused the messages"),
        (TEMPLATE, ["hi"], {}, "a message must be an object, not str"),
        (TEMPLATE, [{"role": "user", "content": object()}], {}, "JSON values only, not object"),
        (TEMPLATE, [{"role": "user", "content": "x"}], {"continue_final_message": True}, "exclude each other"),
        (
            TEMPLATE,
            [{"role": "assistant", "tool_calls": []}],
            {"continue_final_message": True, "add_generation_prompt": False},
            "no text to continue",
        ),
        (
            "{{ messages[0].role }}",
            [{"role": "assistant", "content": "x"}],
            {"continue_final_message": True, "add_generation_prompt": False},
            "does not show the final message",
        ),
        ("{{ raise_exception('roles must alternate') }}", [{"role": "user"}], {}, "^roles must alternate$"),
        ("{{ 1 // 0 }}", [{"role": "user"}], {}, "refused the messages"),
        ("{{ messages.append(1) }}", [{"role": "user"}], {}, "refused the messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", [{"role": "user"}], {}, "refused the messages"),
        ("{{ cycler.__init__.__globals__.os }}", [{"role": "user"}], {}, "refused the messages"),
        ("{% include '/etc/passwd' %}", [{"role": "user"}], {}, "refused the messages"),
        (
            "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
            [{"role": "user"}],
            {},
            "more than 16777216 characters",
        ),
    ],
)
def test_what_cannot_be_rendered_is_an_error_of_its_own_kind(
    template: str, messages: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(template, NAMES).render(messages, **options)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}", NAMES)


def test_the_date_can_be_asked_for() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}", NAMES).render([{"role": "user"}])
    assert len(text) == 4
    assert text.isdigit()
