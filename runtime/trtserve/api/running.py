"""Running generations: submit all choices of a request, follow them, and stop them when nobody listens any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from trtserve.api.errors import ApiError, draining, failed, from_engine, json_bytes
from trtserve.api.metrics import RequestTimer
from trtserve.engine.protocol import (
    Delta,
    Engine,
    EngineError,
    Finish,
    Generation,
    GenerationRequest,
    Source,
    TokenOut,
)

log = logging.getLogger("trtserve.api")

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client hung up before its answer was ready."""


class Running:
    """The generations of one API request, in the order of its choices."""

    def __init__(self, engine: Engine, requests: Sequence[GenerationRequest], timer: RequestTimer) -> None:
        """Submit all or none. Raises ApiError."""
        self.generations: list[Generation] = []
        self._timer = timer
        try:
            for request in requests:
                self.generations.append(engine.submit(request))
        except EngineError as e:
            self.cancel()
            raise from_engine(e) from e
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Free every slot within a round. Harmless when all is finished."""
        for generation in self.generations:
            generation.cancel()

    async def events(self) -> AsyncIterator[tuple[int, Delta | Finish]]:
        """(choice, event) as they come, until every choice has finished.

        Raises ApiError when a choice fails; the caller then cancels the others.
        """
        async with contextlib.aclosing(self._follow(0) if len(self.generations) == 1 else self._merge()) as merged:
            async for index, event in merged:
                self._timer.observe(index, event)
                if isinstance(event, Finish):
                    if event.reason == "error":
                        raise failed(event.error or "The engine failed on this request.")
                    if event.reason == "cancelled":
                        # Not by this client, who would not be listening: the server is going away.
                        raise draining()
                yield index, event

    async def _follow(self, index: int) -> AsyncGenerator[tuple[int, Delta | Finish], None]:
        async for event in self.generations[index]:
            yield index, event

    async def _merge(self) -> AsyncGenerator[tuple[int, Delta | Finish], None]:
        queue: asyncio.Queue[tuple[int, Delta | Finish | BaseException]] = asyncio.Queue()

        async def pump(index: int) -> None:
            try:
                async for event in self.generations[index]:
                    queue.put_nowait((index, event))
            except Exception as e:
                queue.put_nowait((index, e))

        tasks = [asyncio.create_task(pump(i)) for i in range(len(self.generations))]
        try:
            unfinished = len(tasks)
            while unfinished:
                index, event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                unfinished -= isinstance(event, Finish)
                yield index, event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Collected:
    """One choice, whole."""

    tokens: list[TokenOut] = field(default_factory=list)
    text: str = ""
    spans: list[tuple[str, Source | None]] = field(default_factory=list)
    finish: Finish | None = None


async def collect(running: Running) -> list[Collected]:
    """Every choice of ``running``, whole."""
    choices = [Collected() for _ in running.generations]
    texts: list[list[str]] = [[] for _ in choices]
    async for index, event in running.events():
        choice = choices[index]
        if isinstance(event, Finish):
            choice.finish = event
            choice.text = "".join(texts[index])
            continue
        texts[index].append(event.text)
        choice.tokens.extend(event.tokens)
        for text, source in event.spans or ((event.text, None),):
            if choice.spans and choice.spans[-1][1] == source:
                choice.spans[-1] = (choice.spans[-1][0] + text, source)
            elif text:
                choice.spans.append((text, source))
    return choices


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_client_leaves(receive: Receive, work: Awaitable[T], abandon: Callable[[], None]) -> T:
    """``work``'s result. When the client hangs up first: ``abandon()``, and ClientGoneError.

    ``abandon`` is called in every case in which the work did not end well. The request's body must have been read.
    """
    job = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait({job, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientGoneError
        return job.result()
    except BaseException:
        abandon()
        raise
    finally:
        for task in (job, watch):
            task.cancel()
        await asyncio.gather(job, watch, return_exceptions=True)


async def collect_for(request: Request, running: Running) -> list[Collected]:
    """Every choice, whole, unless the client hangs up: then its slots are freed and ClientGoneError is raised."""
    return await unless_client_leaves(request.receive, collect(running), running.cancel)


def event_bytes(content: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(content) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Server-sent events of running generations, which are cancelled as soon as the client hangs up.

    A failure after the first byte becomes an error event, the last one before ``[DONE]``.
    """

    media_type = "text/event-stream"

    def __init__(self, running: Running, chunks: AsyncIterator[bytes]) -> None:
        # Proxies must pass events on as they come.
        super().__init__(self._guarded(chunks), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._running = running

    async def _guarded(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        except ApiError as e:
            self._running.cancel()
            yield event_bytes(e.body)
        except EngineError as e:
            self._running.cancel()
            yield event_bytes(from_engine(e).body)
        except Exception:
            self._running.cancel()
            log.exception("a stream failed inside the server")
            error = ApiError(500, "The server failed on this request.", type="server_error", code="internal_error")
            yield event_bytes(error.body)
        yield DONE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The body may never start, so the generations are stopped here and not by the iterator.
        try:
            await unless_client_leaves(receive, self.stream_response(send), self._running.cancel)
        except (ClientGoneError, OSError):
            return
        finally:
            self._running.cancel()
