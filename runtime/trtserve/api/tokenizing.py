"""``POST /tokenize`` and ``POST /detokenize``: what a text costs, before it is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from trtserve.api.body import body_docs, read_body
from trtserve.api.context import ServerContext, context_of, tenant_of
from trtserve.api.errors import invalid, json_response
from trtserve.api.prompts import chat_tokens, check_vocabulary, text_tokens
from trtserve.api.schema import DetokenizeBody, TokenizeBody

router = APIRouter(dependencies=[Depends(tenant_of)])


def _tokenize(context: ServerContext, body: TokenizeBody) -> dict[str, Any]:
    if body.prompt is not None:
        tokens = text_tokens(context, body.prompt, body.add_special_tokens)
    else:
        tokens = chat_tokens(context, body)
    strings = (
        [context.codec.token_bytes(t).decode("utf-8", "replace") for t in tokens] if body.return_token_strs else None
    )
    return {"count": len(tokens), "max_model_len": context.max_context, "tokens": tokens, "token_strs": strings}


@router.post("/tokenize", summary="The tokens of a prompt or a conversation", openapi_extra=body_docs(TokenizeBody))
async def tokenize(request: Request) -> Response:
    context = context_of(request)
    body = await read_body(request, TokenizeBody)
    context.check_model(body.model)
    return json_response(await to_thread.run_sync(_tokenize, context, body))


@router.post("/detokenize", summary="The text of tokens", openapi_extra=body_docs(DetokenizeBody))
async def detokenize(request: Request) -> Response:
    context = context_of(request)
    body = await read_body(request, DetokenizeBody)
    context.check_model(body.model)
    if len(body.tokens) > context.max_context:
        raise invalid(
            f"This model's context is {context.max_context} tokens and {len(body.tokens)} are given; "
            f"allowed: up to {context.max_context}",
            "tokens",
            "context_length_exceeded",
        )
    check_vocabulary(context, body.tokens, "tokens")
    text = await to_thread.run_sync(partial(context.codec.decode, body.tokens, skip_special=False))
    return json_response({"prompt": text})
