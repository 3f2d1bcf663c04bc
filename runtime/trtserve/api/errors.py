"""Every failure a client can see, in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

A message says where, what was given and what is allowed. It never carries prompt text or a token.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sized
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from trtserve.engine.protocol import EngineClosedError, EngineError, QueueFullError, RequestError

log = logging.getLogger("trtserve.api")

#: Seconds a client is told to wait when the server is going away: another replica should take the request.
DRAIN_RETRY_AFTER = 5
#: nginx's status for a client that closed its connection; nobody receives it, the metrics count it.
CLIENT_CLOSED = 499
#: Characters of an error's message.
MAX_MESSAGE = 2000


class ApiError(Exception):
    """A request that ends in an error response. ``param`` names the field at fault, ``code`` is stable for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Numbers and names of any length are repeated in messages.
        message = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is at fault."""
    return ApiError(400, message, param=param, code=code or "invalid_value")


def unsupported(param: str, why: str) -> ApiError:
    """400: the request asks for something this server does not do, which would change the answer if ignored."""
    return ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")


def unavailable(message: str, code: str) -> ApiError:
    """503: try again, or elsewhere."""
    headers = {"Retry-After": str(DRAIN_RETRY_AFTER)}
    return ApiError(503, message, type="service_unavailable_error", code=code, headers=headers)


def draining() -> ApiError:
    """503: the server is going away."""
    return unavailable("The server is shutting down and takes no new requests. Try again shortly.", "draining")


def failed(message: str) -> ApiError:
    """500: this request failed inside the engine."""
    return ApiError(500, message, type="server_error", code="engine_error")


def from_engine(error: EngineError) -> ApiError:
    """What an engine refused or failed, as the client sees it."""
    if isinstance(error, RequestError):
        return invalid(str(error), error.param)
    if isinstance(error, QueueFullError):
        return ApiError(
            429,
            str(error),
            type="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(max(1, error.retry_after))},
        )
    if isinstance(error, EngineClosedError):
        return unavailable(str(error), "engine_closed")
    return failed(str(error))


def path_of(loc: tuple[int | str, ...]) -> str:
    """A pydantic location as clients write it: ``messages[0].content``."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _given(value: object) -> str:
    """The value given, where it is short and harmless to repeat."""
    if isinstance(value, bool | int | float) or value is None:
        return f" (given: {json.dumps(value)})"
    if isinstance(value, str) and len(value) <= 40:
        return f" (given: {json.dumps(value, ensure_ascii=False)})"
    return f" (given: {type(value).__name__})" if isinstance(value, list | dict | str) else ""


def _length_message(value: object, bounds: Mapping[str, Any]) -> str:
    """Pydantic names its own types here, which no client knows."""
    allowed = f"up to {bounds['max_length']}" if "max_length" in bounds else f"at least {bounds['min_length']}"
    return f"has {len(value) if isinstance(value, Sized) else 'other'} items; allowed: {allowed}"


def from_validation(error: ValidationError, rename: Mapping[str, str] | None = None) -> ApiError:
    """A schema violation as a 400 that names each field at fault, the first one as ``param``."""
    problems, first = [], None
    for problem in error.errors():
        loc = problem["loc"]
        if rename and loc and loc[0] in rename:
            loc = (rename[str(loc[0])], *loc[1:])
        path = path_of(loc)
        first = first or path or None
        if problem["type"] == "missing":
            problems.append(f"{path}: required but missing")
            continue
        message, given = problem["msg"].removeprefix("Value error, "), ""
        if problem["type"] in ("too_long", "too_short"):
            message = _length_message(problem["input"], problem["ctx"])
        elif problem["type"] != "value_error":
            given = _given(problem["input"])
        problems.append(f"{path}: {message}{given}" if path else message)
    missing = all(p["type"] == "missing" for p in error.errors())
    return invalid("; ".join(problems[:8]), first, "missing_required_parameter" if missing else None)


def json_bytes(content: object) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(content), status, headers=dict(headers or {}), media_type="application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body, error.status, error.headers)


def install(app: FastAPI) -> None:
    """Give every failure of ``app`` the one error shape, unknown paths and methods and bugs included."""

    async def api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error_response(error)

    async def engine_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return error_response(from_engine(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow", "")
        message = {
            404: f"Unknown path: {request.method} {request.url.path}",
            405: f"{request.url.path} does not take {request.method}" + (f"; allowed: {allowed}" if allowed else ""),
        }.get(error.status_code, str(error.detail))
        code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
        return error_response(ApiError(error.status_code, message, code=code, headers=error.headers))

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    async def bug(request: Request, _: Exception) -> Response:
        log.error("%s %s failed inside the server", request.method, request.url.path)
        # The error goes on to the HTTP server, which gives up the connection: a client must not send another request
        # into it.
        headers = {"Connection": "close"}
        message = "The server failed on this request."
        return error_response(ApiError(500, message, type="server_error", code="internal_error", headers=headers))

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(EngineError, engine_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, bug)
