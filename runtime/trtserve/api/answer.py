"""From a checked request to its response: what chat and completions have in common.

An ``Answer`` knows one endpoint's JSON; ``respond`` submits the choices and sends that JSON whole or as events.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

from anyio import to_thread
from fastapi import Request
from starlette.responses import Response

from trtserve.api.accounting import RunningUsage, account
from trtserve.api.context import ServerContext
from trtserve.api.errors import CLIENT_CLOSED, invalid, json_response
from trtserve.api.metrics import RequestTimer
from trtserve.api.running import ClientGoneError, Collected, EventStream, Running, collect_for, event_bytes
from trtserve.api.schema import GenerationBody, StreamOptions
from trtserve.engine.protocol import Delta, Finish, GenerationRequest, Scope, Source


def finish_reason(finish: Finish | None) -> str:
    """OpenAI's name of a finished generation's end."""
    return "length" if finish is not None and finish.reason == "length" else "stop"


def spans_json(spans: Sequence[tuple[str, Source | None]]) -> list[dict[str, str | None]]:
    """The ``spans`` extension: runs of text by the source they were copied from, null for the model's own."""
    return [{"text": text, "source": source} for text, source in spans]


class Answer(ABC):
    """One request's answer, in one endpoint's JSON. ``index`` counts choices over all prompts, prompt by prompt."""

    object_name: str
    chunk_name: str
    id_prefix: str

    def __init__(self, context: ServerContext, body: GenerationBody) -> None:
        self.context = context
        self.body = body
        self.id = self.id_prefix + secrets.token_hex(12)
        self._created = int(time.time())
        self._timer = RequestTimer(context.metrics)

    def stop_reason(self, finish: Finish | None) -> str | int | None:
        """The stop string or stop token that ended a choice; null for the model's own end token, as in vLLM."""
        stop = finish.stop if finish is not None else None
        own_end = stop in self.context.engine.manifest.tokenizer.eos_token_ids
        return None if own_end and stop not in (self.body.stop_token_ids or ()) else stop

    @property
    def num_prompts(self) -> int:
        return 1

    @abstractmethod
    def encode(self) -> list[list[int]]:
        """The tokens of each prompt, which the context holds. Runs in a worker thread; raises ApiError."""

    @abstractmethod
    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """A whole choice."""

    @abstractmethod
    def opening(self, index: int) -> dict[str, Any] | None:
        """A stream's first piece of a choice."""

    @abstractmethod
    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """A stream's next piece of a choice, or None when there is nothing to show yet."""

    @abstractmethod
    def ending(self, index: int, finish: Finish) -> dict[str, Any]:
        """A stream's last piece of a choice."""

    def _requests(self, tenant: str) -> list[GenerationRequest]:
        """One engine request per choice. Runs in a worker thread; raises ApiError."""
        context, body = self.context, self.body
        params = body.sampling_params()
        count = self.num_prompts * body.n
        if context.config.max_choices is not None and count > context.config.max_choices:
            raise invalid(
                f"{count} choices never fit slots and queue together; allowed: up to {context.config.max_choices}", "n"
            )
        prompts = self.encode()
        prediction: list[int] = []
        if body.prediction is not None:
            # No output is longer than the context.
            prediction = context.codec.encode_head(body.prediction.content, context.max_context).tolist()
        requests: list[GenerationRequest] = []
        for prompt in prompts:
            for i in range(body.n):
                # Choice i's seed is the request's plus i, so that n=1 gives the first of n=2.
                own: dict[str, int] = {}
                if params.seed is not None and i:
                    own["seed"] = (params.seed + i) % (1 << 64)
                if params.max_tokens is not None:
                    # Only a default can be more than the room; what was asked for has been checked.
                    own["max_tokens"] = min(params.max_tokens, context.max_context - len(prompt))
                requests.append(
                    GenerationRequest(
                        prompt=prompt,
                        params=params.model_copy(update=own),
                        scope=Scope(tenant=tenant, salt=body.cache_salt),
                        prediction=prediction,
                        lookup=body.prompt_lookup,
                        request_id=f"{self.id}-{len(requests)}",
                    )
                )
        return requests

    async def respond(self, request: Request, tenant: str) -> Response:
        """Submit every choice, and answer whole or as a stream. Raises ApiError."""
        requests = await to_thread.run_sync(self._requests, tenant)
        self.context.check_open()
        running = Running(self.context.engine, requests, self._timer)
        headers = {"x-request-id": self.id}
        if self.body.stream:
            stream = EventStream(running, self._chunks(running))
            stream.headers.update(headers)
            return stream
        try:
            choices = await collect_for(request, running)
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED)
        finishes = [c.finish for c in choices if c.finish is not None]
        content = {
            **self._envelope(self.object_name),
            "choices": [self.choice(i, c) for i, c in enumerate(choices)],
            **account(finishes, self.body.n),
        }
        return json_response(content, headers=headers)

    def _envelope(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self._created,
            "model": self.context.model,
            "system_fingerprint": self.context.fingerprint,
        }

    async def _chunks(self, running: Running) -> AsyncIterator[bytes]:
        options = self.body.stream_options or StreamOptions()
        envelope = self._envelope(self.chunk_name)
        used = [RunningUsage(len(generation.request.prompt)) for generation in running.generations]

        def chunk(index: int, choice: dict[str, Any], finish: Finish | None = None) -> bytes:
            tail: dict[str, Any] = {}
            if options.continuous_usage_stats:
                tail = {"usage": used[index].usage()} if finish is None else account([finish], 1)
            elif options.include_usage:
                tail = {"usage": None}
            return event_bytes({**envelope, "choices": [choice], **tail})

        for index in range(len(running.generations)):
            if (first := self.opening(index)) is not None:
                yield chunk(index, first)
        finishes: dict[int, Finish] = {}
        async for index, event in running.events():
            if isinstance(event, Finish):
                finishes[index] = event
                yield chunk(index, self.ending(index, event), event)
                continue
            if options.continuous_usage_stats:
                used[index].add(event)
            if (piece := self.piece(index, event)) is not None:
                yield chunk(index, piece)
        if options.include_usage:
            ordered = [finishes[i] for i in sorted(finishes)]
            yield event_bytes({**envelope, "choices": [], **account(ordered, self.body.n)})
