"""Web pages of other origins (CORS): which of them a browser lets call this server and read its answers."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

ANY_ORIGIN = "*"

#: As browsers send it: small letters, no path, and no port where it is the scheme's own.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
_OWN_PORT = re.compile(r"http://.*:80|https://.*:443")


def check_origin(text: str) -> None:
    """Raises ValueError for what no browser would send as a page's origin: the page would be refused, and nothing
    would say why."""
    if text == ANY_ORIGIN:
        return
    if text == "null":
        raise ValueError(f"null is sent for pages of any site that hide their origin; {ANY_ORIGIN} allows every page")
    if not _ORIGIN.fullmatch(text) or _OWN_PORT.fullmatch(text):
        raise ValueError(
            f"{text[:200]!r} is no origin as browsers send it; allowed: scheme://host or scheme://host:port in small "
            f"letters, without a path, a slash at the end or the scheme's own port, or {ANY_ORIGIN}"
        )


def allow_origins(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """``app``, for pages of ``origins`` too. It goes around all of an application, so that its every answer says so;
    a browser keeps the others from the page, which then cannot tell what went wrong."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST"),
        # A page needs Authorization and Content-Type, and clients send headers of their own along. None has a meaning
        # here that a page should not use.
        allow_headers=("*",),
        # What a page may read besides the body. A token is a header that the page sets, so no page needs a browser's
        # credentials (cookies), and none are allowed.
        expose_headers=("X-Request-Id", "Retry-After"),
    )
