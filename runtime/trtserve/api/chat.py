"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from trtserve.api.answer import Answer, finish_reason, spans_json
from trtserve.api.body import body_docs, read_body
from trtserve.api.context import context_of, tenant_of
from trtserve.api.logprobs import chat_logprobs
from trtserve.api.prompts import chat_tokens, check_fits
from trtserve.api.running import Collected
from trtserve.api.schema import ChatBody
from trtserve.engine.protocol import Delta, Finish

router = APIRouter()


class ChatAnswer(Answer):
    """A chat completion."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    id_prefix = "chatcmpl-"
    body: ChatBody

    def encode(self) -> list[list[int]]:
        tokens = chat_tokens(self.context, self.body)
        check_fits(self.context, tokens, "messages", self.body.max_tokens_asked)
        return [tokens]

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        body = self.body
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": collected.text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish_reason(collected.finish),
            "stop_reason": self.stop_reason(collected.finish),
        }
        if body.logprobs:
            choice["logprobs"] = chat_logprobs(self.context.codec, collected.tokens, body.top_logprobs or 0)
        if body.return_spans:
            choice["spans"] = spans_json(collected.spans)
        return choice

    def opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        body = self.body
        if not delta.text and not (body.logprobs and delta.tokens):
            return None
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": delta.text},
            "logprobs": None,
            "finish_reason": None,
        }
        if body.logprobs:
            choice["logprobs"] = chat_logprobs(self.context.codec, delta.tokens, body.top_logprobs or 0)
        if body.return_spans:
            choice["spans"] = spans_json(delta.spans or ((delta.text, None),))
        return choice

    def ending(self, index: int, finish: Finish) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": finish_reason(finish),
            "stop_reason": self.stop_reason(finish),
        }


@router.post("/v1/chat/completions", summary="Answer a conversation", openapi_extra=body_docs(ChatBody))
async def chat_completions(request: Request, tenant: str = Depends(tenant_of)) -> Response:
    context = context_of(request)
    context.check_open()
    body = await read_body(request, ChatBody)
    context.check_model(body.model)
    return await ChatAnswer(context, body).respond(request, tenant)
