"""``POST /v1/completions``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from trtserve.api.answer import Answer, finish_reason, spans_json
from trtserve.api.body import body_docs, read_body
from trtserve.api.context import ServerContext, context_of, tenant_of
from trtserve.api.logprobs import CompletionLogprobs
from trtserve.api.prompts import prompt_tokens
from trtserve.api.running import Collected
from trtserve.api.schema import CompletionBody
from trtserve.engine.protocol import Delta, Finish

router = APIRouter()


class CompletionAnswer(Answer):
    """A plain completion of one prompt or several."""

    object_name = "text_completion"
    chunk_name = "text_completion"
    id_prefix = "cmpl-"
    body: CompletionBody

    def __init__(self, context: ServerContext, body: CompletionBody) -> None:
        super().__init__(context, body)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._echoes: list[str] = []

    @property
    def num_prompts(self) -> int:
        return len(self.body.prompt)

    def encode(self) -> list[list[int]]:
        tokens = prompt_tokens(self.context, self.body)
        if self.body.echo:
            self._echoes = [
                prompt if isinstance(prompt, str) else self.context.codec.decode(prompt, skip_special=False)
                for prompt in self.body.prompt
            ]
        return tokens

    def _echo(self, index: int) -> str:
        return self._echoes[index // self.body.n] if self.body.echo else ""

    def _logprobs_of(self, index: int) -> CompletionLogprobs:
        return self._logprobs.setdefault(index, CompletionLogprobs(self.context.codec, self.body.logprobs or 0))

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        echo = self._echo(index)
        choice: dict[str, Any] = {
            "index": index,
            "text": echo + collected.text,
            "logprobs": None,
            "finish_reason": finish_reason(collected.finish),
            "stop_reason": self.stop_reason(collected.finish),
        }
        if self.body.logprobs is not None:
            choice["logprobs"] = self._logprobs_of(index).of(collected.tokens)
        if self.body.return_spans:
            choice["spans"] = spans_json(collected.spans)
        return choice

    def opening(self, index: int) -> dict[str, Any] | None:
        if not (echo := self._echo(index)):
            return None
        return {"index": index, "text": echo, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        with_logprobs = self.body.logprobs is not None
        if not delta.text and not (with_logprobs and delta.tokens):
            return None
        choice: dict[str, Any] = {"index": index, "text": delta.text, "logprobs": None, "finish_reason": None}
        if with_logprobs:
            choice["logprobs"] = self._logprobs_of(index).of(delta.tokens)
        if self.body.return_spans:
            choice["spans"] = spans_json(delta.spans or ((delta.text, None),))
        return choice

    def ending(self, index: int, finish: Finish) -> dict[str, Any]:
        return {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": finish_reason(finish),
            "stop_reason": self.stop_reason(finish),
        }


@router.post("/v1/completions", summary="Continue a text", openapi_extra=body_docs(CompletionBody))
async def completions(request: Request, tenant: str = Depends(tenant_of)) -> Response:
    context = context_of(request)
    context.check_open()
    body = await read_body(request, CompletionBody)
    context.check_model(body.model)
    return await CompletionAnswer(context, body).respond(request, tenant)
