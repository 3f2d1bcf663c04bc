"""Health, version and metrics: what an operator asks a server."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from trtserve.api.context import context_of, tenant_of
from trtserve.api.errors import json_response
from trtserve.api.version import version

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", summary="200 when requests are taken, 503 when draining or broken")
async def health(request: Request) -> Response:
    context = context_of(request)
    if context.draining:
        return json_response({"status": "draining"}, 503)
    if not context.engine.healthy:
        return json_response({"status": "unhealthy"}, 503)
    return json_response({"status": "ok"})


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live", summary="200 while the process answers, draining or not")
async def live() -> Response:
    return json_response({"status": "ok"})


@router.get("/version", summary="Versions and what runs")
async def show_version(request: Request) -> Response:
    context = context_of(request)
    manifest = context.engine.manifest
    return json_response({"version": version(), "model": context.model, "target": manifest.target})


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    context = context_of(request)
    if context.config.metrics_need_auth:
        await tenant_of(request)
    # In a thread: the engine may take a lock for its snapshot.
    body, kind = await asyncio.to_thread(context.metrics.exposition, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind})
