"""The request bodies, as pydantic models. Ranges of sampling fields live in ``SamplingParams`` alone.

Types are strict (``"5"`` is no number) and null means not given. Field names are OpenAI's, then vLLM's for what
OpenAI lacks, then this project's own: ``prompt_lookup``, ``return_spans``.

A body has room for millions of wrong items, and a report of each would take a thousand times the body's memory. So
lists are ``fail_fast``, and of unknown fields only the first is reported.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trtserve.api.errors import from_validation
from trtserve.sampling import MAX_BIASES, MAX_LOGPROBS, SamplingParams

MAX_CHOICES = 128


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        unknown = next((name for name in given if name not in cls.model_fields), None)
        if unknown is not None:
            raise ValueError(f"has the unknown field {str(unknown)[:40]!r}; allowed: {', '.join(cls.model_fields)}")
        return {name: value for name, value in given.items() if value is not None}


class StreamOptions(_Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: every chunk has the usage of its choice so far."""
    include_obfuscation: bool = False
    """Accepted and ignored: OpenAI's padding against traffic analysis."""

    @model_validator(mode="after")
    def _continuous_needs_usage(self) -> StreamOptions:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats is allowed only with include_usage: true")
        return self


def text_of(content: object, joint: str) -> str:
    """Text given as a string or as a list of text parts. Raises ValueError for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise ValueError(f"part {i} is of type {kind!r}; this server takes text only")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ValueError(f"part {i} has no text")
        texts.append(text)
    return joint.join(texts)


class Prediction(_Body):
    """What the caller expects in the output. It speeds the answer up where it is right and never changes it."""

    type: Literal["content"]
    content: str

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: object) -> str:
        return text_of(content, "")


class Message(BaseModel):
    """One chat message. Keys beyond these reach the chat template as they are."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = Field(default=None, fail_fast=True)
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, content: object) -> str | None:
        return None if content is None else text_of(content, "\n")


class GenerationBody(_Body):
    """What chat and completions share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: list[str] = Field(default=[], fail_fast=True)
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str = Field(default="", max_length=256)
    prediction: Prediction | None = None
    prompt_lookup: bool = True
    return_spans: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_list(cls, stop: object) -> object:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _bias_size(cls, bias: object) -> object:
        if isinstance(bias, dict) and len(bias) > MAX_BIASES:
            raise ValueError(f"has {len(bias)} tokens; allowed: up to {MAX_BIASES}")
        return bias

    @field_validator("logit_bias")
    @classmethod
    def _bias_keys(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for key in bias or {}:
            if not (key.isascii() and key.isdigit() and len(key) <= 9):
                raise ValueError(f"keys are token ids; {key[:40]!r} is none")
        return bias

    @model_validator(mode="after")
    def _options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed only with stream: true")
        return self

    @property
    def max_tokens_asked(self) -> int | None:
        """The output limit as the request gives it, without an endpoint's default."""
        return self.max_tokens

    @property
    def _renamed(self) -> dict[str, str]:
        """SamplingParams' names of fields that this body calls otherwise."""
        return {}

    def _overrides(self) -> dict[str, Any]:
        """Fields of SamplingParams whose value is not this body's field of the same name."""
        return {}

    def sampling_params(self) -> SamplingParams:
        """The sampling this body asks for. Raises ApiError for a value out of range."""
        values: dict[str, Any] = {
            name: value
            for name in SamplingParams.model_fields
            if name in type(self).model_fields and (value := getattr(self, name)) is not None
        }
        values.pop("logprobs", None)
        if self.logit_bias is not None:
            values["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        values.update(self._overrides())
        try:
            return SamplingParams.model_validate(values)
        except ValidationError as e:
            raise from_validation(e, self._renamed) from e


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: list[dict[str, Any]] | None = Field(default=None, fail_fast=True)
    tool_choice: Any = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    echo: Literal[False] = False
    add_special_tokens: Literal[False] = False

    @model_validator(mode="after")
    def _agree(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is allowed only with logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give max_completion_tokens alone")
        if self.tool_choice not in (None, "none", "auto"):
            raise ValueError(
                "tool_choice can be none or auto: tools reach the chat template, but calls cannot be enforced"
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("add_generation_prompt and continue_final_message exclude each other")
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message needs a last message of role assistant")
        return self

    @property
    def max_tokens_asked(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def _renamed(self) -> dict[str, str]:
        limit = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return {"logprobs": "top_logprobs", **limit}

    def _overrides(self) -> dict[str, Any]:
        limit = self.max_tokens_asked
        values: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
        if self.logprobs:
            values["logprobs"] = self.top_logprobs or 0
        return values


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: list[str | list[int]] = Field(fail_fast=True)
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt_list(cls, prompt: object) -> list[str] | list[list[int]]:
        """A string, several strings, one token list or several."""
        problem = "must be a string, a list of strings, a list of token ids or a list of such lists"
        if isinstance(prompt, str):
            return [prompt]
        if not isinstance(prompt, list):
            raise ValueError(problem)
        if not prompt:
            raise ValueError("is empty")
        if all(isinstance(x, str) for x in prompt):
            return prompt
        lists = [prompt] if all(type(x) is int for x in prompt) else prompt
        if not all(isinstance(x, list) and x and all(type(t) is int for t in x) for x in lists):
            raise ValueError(problem)
        return lists

    @model_validator(mode="after")
    def _agree(self) -> CompletionBody:
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs would need log-probabilities of the prompt, which are not supported")
        if len(self.prompt) > MAX_CHOICES or len(self.prompt) * self.n > MAX_CHOICES:
            raise ValueError(f"prompts times n is {len(self.prompt) * self.n}; allowed: up to {MAX_CHOICES}")
        return self

    def _overrides(self) -> dict[str, Any]:
        # OpenAI's default for this endpoint; chat has none.
        values: dict[str, Any] = {"max_tokens": 16 if self.max_tokens is None else self.max_tokens}
        if self.logprobs is not None:
            values["logprobs"] = self.logprobs
        return values


class TokenizeBody(_Body):
    """``POST /tokenize``: either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, fail_fast=True)
    tools: list[dict[str, Any]] | None = Field(default=None, fail_fast=True)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(_Body):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[int] = Field(fail_fast=True)
