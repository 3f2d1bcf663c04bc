"""From an HTTP body to a checked request object, and nothing that cannot be answered with a clear 400."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from fastapi import Request
from pydantic import BaseModel, ValidationError

from trtserve.api.context import context_of
from trtserve.api.errors import ApiError, from_validation, invalid
from trtserve.api.fields import known_fields

BodyT = TypeVar("BodyT", bound=BaseModel)

#: Bytes from which a body is parsed and checked in a thread, so that other connections are served meanwhile.
_LARGE = 1 << 16


#: Bytes of a body a second, on an average, of a client that gets on with it.
_LEAST_RATE = 1024


class _ConstantError(ValueError):
    """NaN or an infinity by name, which Python reads and JSON does not have."""


def _reject_constant(name: str) -> float:
    raise _ConstantError(f"{name} is not JSON")


async def _read(request: Request, limit: int, timeout: float) -> bytes:
    """The body, or ApiError 413 as soon as it is known to be over ``limit`` bytes, or 408 when no more of it has come
    for ``timeout`` seconds, or for so long altogether less than ``_LEAST_RATE``."""
    too_large = ApiError(413, f"The request body is over {limit} bytes, this server's limit.", code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    body = bytearray()
    stream = request.stream()
    begin = anyio.current_time()
    try:
        while True:
            behind = anyio.current_time() - begin - len(body) / _LEAST_RATE
            with anyio.fail_after(min(timeout, timeout - behind)):
                body += await anext(stream)
            if len(body) > limit:
                raise too_large
    except StopAsyncIteration:
        return bytes(body)
    except TimeoutError:
        message = f"The request body came too slowly; this server waits {timeout:g} s for more of it."
        raise ApiError(408, message, code="request_timeout", headers={"Connection": "close"}) from None


def _parse(body: bytes) -> dict[str, Any]:
    try:
        # Not left to json.loads, which also reads UTF-16 and UTF-32 and lets encoded surrogates pass. A byte order mark
        # is no part of the text.
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_reject_constant)
        if b"\\ud" in body.lower():
            # Half of a surrogate pair is valid JSON but no text: nothing could tokenize it, or echo it in an error.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid(
            "The request body has an unpaired surrogate escape, which is no text.", code="invalid_json"
        ) from None
    except UnicodeDecodeError:
        raise invalid("The request body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise invalid("The request body is nested too deeply.", code="invalid_json") from None
    except json.JSONDecodeError as e:
        where = f"line {e.lineno}, column {e.colno}"
        raise invalid(f"The request body is not JSON: {e.msg} at {where}.", code="invalid_json") from None
    except _ConstantError as e:
        raise invalid(f"The request body is not JSON: {e}.", code="invalid_json") from None
    except ValueError:  # an integer of more digits than Python converts
        raise invalid("The request body has a number with too many digits.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.", code="invalid_json")
    return value


def _checked(body: bytes, schema: type[BodyT]) -> BodyT:
    raw = _parse(body)
    try:
        return schema.model_validate(known_fields(raw, schema.model_fields))
    except ValidationError as e:
        raise from_validation(e) from e


async def read_body(request: Request, schema: type[BodyT]) -> BodyT:
    """The request's body as ``schema``. Raises ApiError 400, 408, 413 or 415, and ClientDisconnect."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(
            415,
            f"Content-Type is {kind or 'missing'}; send application/json",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(
            415,
            f"Content-Encoding is {encoding[:40]}; this server takes bodies that are not compressed",
            code="unsupported_media_type",
        )
    context = context_of(request)
    body = await _read(request, context.config.max_body_bytes, context.config.stall_timeout)
    if len(body) < _LARGE:
        return _checked(body, schema)
    async with context.large_bodies:
        return await to_thread.run_sync(_checked, body, schema)


def body_docs(schema: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body through ``read_body``."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
