"""The HTTP application: routers, error shape and metrics around one engine."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from trtserve.api import chat, completions, errors, health, models, playground, tokenizing
from trtserve.api.context import ServerContext
from trtserve.api.cross_origin import allow_origins
from trtserve.api.metrics import HttpMetricsMiddleware
from trtserve.api.version import version


def create_app(context: ServerContext) -> ASGIApp:
    """An ASGI application that serves ``context``'s engine. It neither starts nor closes the engine."""
    app = FastAPI(
        title="trtserve",
        version=version(),
        summary="An OpenAI-compatible API with prompt-lookup decoding.",
        # The interactive pages load scripts from elsewhere; the schema alone is served.
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    for module in (chat, completions, models, tokenizing, health, playground):
        app.include_router(module.router)
    errors.install(app)
    # Around the application and not within it: what FastAPI answers to a bug is outside of its own middleware.
    served = allow_origins(app, context.config.allowed_origins) if context.config.allowed_origins else app
    return HttpMetricsMiddleware(served, context.metrics)
