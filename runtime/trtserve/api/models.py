"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from trtserve.api.context import ServerContext, context_of, tenant_of
from trtserve.api.errors import json_response

router = APIRouter(dependencies=[Depends(tenant_of)])


def _card(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "trtlookup",
        "root": context.engine.manifest.name,
        "parent": None,
        "max_model_len": context.max_context,
    }


@router.get("/v1/models", summary="The names this server answers to")
async def list_models(request: Request) -> Response:
    context = context_of(request)
    return json_response({"object": "list", "data": [_card(context, name) for name in context.names]})


@router.get("/v1/models/{name:path}", summary="One model")
async def get_model(request: Request, name: str) -> Response:
    context = context_of(request)
    context.check_model(name)
    return json_response(_card(context, name))
