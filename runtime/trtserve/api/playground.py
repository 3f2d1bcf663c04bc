"""``GET /``: one static page to talk to the model and watch its copies. It loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter()


@cache
def _page() -> tuple[bytes, str]:
    """(the page, its Content-Security-Policy): only its own script and style run, and it talks to this server alone."""
    html = resources.files("trtserve.api").joinpath("static/playground.html").read_text(encoding="utf-8")

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(x.encode()).digest()).decode()}'" for x in found)

    policy = (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


@router.get("/", include_in_schema=False)
async def playground() -> Response:
    html, policy = _page()
    return Response(
        html,
        media_type="text/html",
        headers={
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )
