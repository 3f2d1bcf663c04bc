"""The handle of a running generation: a channel from the scheduler's thread to one reader, a thread or a coroutine.

Nobody polls. A thread blocks in the queue. A coroutine leaves a future, and the scheduler wakes all the futures of one
event loop with a single call per round, so a batch of streams costs one wake-up and not one per token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from queue import Empty, SimpleQueue

from trtserve.engine.protocol import Delta, Finish, GenerationRequest

Event = Delta | Finish


class LocalGeneration:
    """A generation of the local engine. Read it from one place; ``cancel`` may be called from anywhere."""

    def __init__(self, request: GenerationRequest, cancel: Callable[[], None]) -> None:
        self.request = request
        self._cancel = cancel
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._ended = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def __iter__(self) -> Iterator[Event]:
        while not self._ended:
            yield self._read(self._events.get())

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self._ended:
            try:
                event = self._events.get_nowait()
            except Empty:
                await self._wait()
                continue
            yield self._read(event)

    def cancel(self) -> None:
        """Stop within a round; frees the slot. A ``Finish("cancelled")`` follows. Harmless when finished."""
        self._cancel()

    def _read(self, event: Event) -> Event:
        if isinstance(event, Finish):
            self._ended = True
            self._events.put(event)  # lets go whoever reads beside us, against the rule, and would wait for ever
        return event

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        # The waiter is shown first and the queue looked at second; the scheduler fills the queue first and looks for
        # a waiter second. Whoever is late sees the other.
        self._waiter = (loop, future)
        try:
            if self._events.empty():
                await future
        finally:
            self._waiter = None


def deliver(events: Iterable[tuple[LocalGeneration, Event]]) -> None:
    """Hand events to their readers, in order, and wake each event loop once. Called by the scheduler's thread."""
    waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    touched: dict[int, LocalGeneration] = {}
    for generation, event in events:
        generation._events.put(event)
        touched[id(generation)] = generation
    for generation in touched.values():
        if (waiter := generation._waiter) is not None:
            waiting.setdefault(waiter[0], []).append(waiter[1])
    for loop, futures in waiting.items():
        _wake(loop, futures)


def _wake(loop: asyncio.AbstractEventLoop, futures: list[asyncio.Future[None]]) -> None:
    # A loop that is closed, also just now, has no readers any more: there is nobody to wake.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
