"""What every route needs, made once per server and carried by the app: no module of the API holds state of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from trtserve.api.auth import Authenticator, OpenAccess
from trtserve.api.errors import ApiError, draining
from trtserve.api.metrics import ServerMetrics
from trtserve.engine.protocol import Engine

#: Large bodies that are parsed at the same time. What JSON becomes can be twenty times its size.
LARGE_BODIES = 2


class TextCodec(Protocol):
    """What the API asks of a tokenizer. ``trtserve.tokenizer.Tokenizer`` is one."""

    def encode(
        self, text: str, /, *, add_bos: bool = False, allow_special: bool = True, most: int | None = None
    ) -> NDArray[np.int32]: ...

    def encode_head(self, text: str, most: int, /) -> NDArray[np.int32]: ...

    def decode(self, ids: Sequence[int], /, *, skip_special: bool = True) -> str: ...

    def token_bytes(self, token: int, /) -> bytes: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str: ...


@dataclass(frozen=True)
class ApiConfig:
    """How the API behaves. The command line fills it in."""

    served_names: tuple[str, ...] = ()
    """Names the model answers to, the first one shown; empty: the manifest's name."""
    max_body_bytes: int = 32 << 20
    stall_timeout: float = 60.0
    """Seconds that a client may keep the server waiting: for a whole request head, for more of a body, and for reading
    on in an answer."""
    keep_alive: float = 75.0
    """Seconds that a connection may be idle between two requests. Proxies keep theirs for up to 60, and one that sends
    a request into a connection just closed must tell its client of a failure."""
    max_head_bytes: int = 1 << 16
    """Bytes of an incomplete request head, the request line and headers, after which it is refused."""
    max_choices: int | None = None
    """Most choices (prompts times n) of one request: what slots and queue can hold together."""
    metrics_need_auth: bool = False
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages elsewhere that may call this server from a browser; ``*``: all of them."""


@dataclass
class ServerContext:
    """One server's parts."""

    engine: Engine
    codec: TextCodec
    config: ApiConfig = ApiConfig()
    auth: Authenticator = field(default_factory=OpenAccess)
    draining: bool = False
    """Set once, when the server begins to shut down: health turns 503, new requests are refused."""
    created: int = field(default_factory=lambda: int(time.time()))
    large_bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LARGE_BODIES))
    metrics: ServerMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = ServerMetrics(self.engine, self.model)

    @property
    def names(self) -> tuple[str, ...]:
        return self.config.served_names or (self.engine.manifest.name,)

    @property
    def model(self) -> str:
        """The name responses carry."""
        return self.names[0]

    @property
    def fingerprint(self) -> str:
        """``system_fingerprint``: equal for equal weights and tokenizer."""
        return "fp_" + self.engine.manifest.model_key[:12]

    @property
    def max_context(self) -> int:
        return self.engine.manifest.limits.max_seq_len

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model this server does not serve. None asks for the only one there is."""
        if name is not None and name not in self.names:
            shown = name if len(name) <= 100 else name[:97] + "..."
            raise ApiError(
                404,
                f"The model {shown!r} does not exist; this server has: {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    def check_open(self) -> None:
        """Raises ApiError 503 when the server is draining."""
        if self.draining:
            raise draining()


def context_of(request: Request) -> ServerContext:
    context = request.app.state.context
    assert isinstance(context, ServerContext)
    return context


async def tenant_of(request: Request) -> str:
    """The caller's tenant, by its bearer token. Raises ApiError 401."""
    return context_of(request).auth.authenticate(request.headers.get("authorization"))
