"""Follows generations and sends what they emit: one thread with an event loop for all requests of a model instance.

Triton's Python API is behind ``Reply``. A client's leaving is found by asking: every ``CANCEL_PERIOD`` seconds each
unfinished request is asked whether it was cancelled, also while it waits for a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from trtserve.engine.protocol import (
    Delta,
    Engine,
    EngineClosedError,
    EngineError,
    Finish,
    Generation,
    GenerationRequest,
    QueueFullError,
    RequestError,
)
from trtserve.engine.requests import prompt_too_long
from trtserve.tokenizer import Tokenizer, TooManyTokensError
from trtserve.triton.request import Call, Stop
from trtserve.triton.response import Answer, Outputs

log = logging.getLogger("trtserve.triton")

CANCEL_PERIOD = 0.05
#: Threads that tokenize, which lets go of the interpreter's lock. Long prompts must not hold up the streams.
TOKENIZERS = 2

_FAILED = "the request failed inside the server, whose log has the reason"
_STOPPED = "the model's thread has stopped; load the model again"

Failure = Literal["invalid", "unavailable", "cancelled", "internal"]


class Reply(Protocol):
    """Where one request's responses go. Used from one thread at a time."""

    def send(self, outputs: Outputs, *, last: bool) -> None: ...

    def fail(self, kind: Failure, message: str) -> None:
        """The last response: an error."""
        ...

    def cancelled(self) -> bool:
        """Whether the client wants no more."""
        ...


class Observer(Protocol):
    """Sees the events of one request, for the metrics."""

    def observe(self, index: int, event: Delta | Finish, /) -> None: ...


class Observers(Protocol):
    def start(self) -> Observer: ...


@dataclass(eq=False)
class _Running:
    call: Call
    reply: Reply
    generation: Generation
    stopped: bool = False
    """Cancelled by its client, by leaving or with a stop request."""

    def stop(self) -> None:
        self.stopped = True
        self.generation.cancel()


class Serving:
    """The requests of one model instance, over an engine that the caller owns."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, observers: Observers) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._observers = observers
        self._lock = threading.Lock()
        self._stopped = False
        self._unanswered: set[Reply] = set()
        self._running: set[_Running] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(TOKENIZERS, "trtserve-tokenize")
        self._watch = self._loop.create_task(self._watch_cancellation())
        self._end_of_all: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="trtserve-triton", daemon=True)
        self._thread.start()

    def accept(self, call: Call | Stop, reply: Reply) -> None:
        """Serve a request, from any thread. Returns at once; everything else reaches ``reply``."""
        with self._lock:
            stopped = self._stopped
            if not stopped:
                self._unanswered.add(reply)
                self._loop.call_soon_threadsafe(self._start, call, reply)
        if stopped:
            _tell(reply, "unavailable", _STOPPED)

    def close(self) -> None:
        """Cancel what runs, answer it, and end the thread. The engine must still be open."""
        with contextlib.suppress(RuntimeError):  # after a crash there is nobody to ask, and nothing left to do
            self._loop.call_soon_threadsafe(self._begin_end)
        self._thread.join()
        self._pool.shutdown()

    # ---- the loop's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException:
            log.exception("the thread that serves stopped")
        with self._lock:
            self._stopped = True
        # Nobody, unless the thread crashed. Triton would wait for them.
        for running in self._running:
            running.generation.cancel()
        for reply in self._unanswered:
            _tell(reply, "unavailable", _STOPPED)
        self._loop.close()

    def _start(self, call: Call | Stop, reply: Reply) -> None:
        if isinstance(call, Stop):
            self._unanswered.discard(reply)
            self._stop(call, reply)
            return
        task = self._loop.create_task(self._serve(call, reply))
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, reply))

    def _served(self, reply: Reply, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._unanswered.discard(reply)
        # Here and not where it was raised: a library's panic is no Exception, and is caught by the loop all the same.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error)
            _tell(reply, "internal", _FAILED)

    def _stop(self, call: Stop, reply: Reply) -> None:
        for running in self._running:
            if (running.call.request_id, running.call.scope.tenant) == (call.request_id, call.scope.tenant):
                running.stop()
        # An error, since that is what TensorRT-LLM's model answers and its clients expect.
        _tell(reply, "cancelled", "Request cancelled by client")

    async def _serve(self, call: Call, reply: Reply) -> None:
        """One request, from its text to its last response. What fails here otherwise is answered by ``_served``: Triton
        would wait."""
        try:
            answer, observer = Answer(call), self._observers.start()
            request = await self._loop.run_in_executor(self._pool, self._request, call)
            await self._follow(_Running(call, reply, self._engine.submit(request)), answer, observer)
        except EngineError as e:
            _tell(reply, _kind(e), str(e))

    async def _follow(self, running: _Running, answer: Answer, observer: Observer) -> None:
        self._running.add(running)
        try:
            async for event in running.generation:
                observer.observe(0, event)
                if isinstance(event, Finish):
                    self._end(running, answer, event)
                elif not running.stopped and (outputs := answer.piece(event)) is not None:
                    running.reply.send(outputs, last=False)
        finally:
            self._running.discard(running)
            running.generation.cancel()

    def _end(self, running: _Running, answer: Answer, finish: Finish) -> None:
        if finish.reason == "error":
            running.reply.fail("internal", finish.error or "the engine failed on this request")
        elif running.stopped:
            running.reply.fail("cancelled", "Request cancelled by client")
        elif finish.reason == "cancelled":
            running.reply.fail("unavailable", "the model is being unloaded")
        else:
            running.reply.send(answer.last(finish), last=True)

    def _request(self, call: Call) -> GenerationRequest:
        """The engine's request. Runs in the pool; raises RequestError."""
        manifest, tokenizer = self._engine.manifest, self._tokenizer
        context = manifest.limits.max_seq_len
        try:
            prompt = tokenizer.encode(call.text, add_bos=manifest.tokenizer.add_bos, most=context - 1).tolist()
        except TooManyTokensError as e:
            raise prompt_too_long(f"at least {e.at_least}", context, "text_input") from None
        prediction = tokenizer.encode_head(call.prediction, context).tolist() if call.prediction else []
        params = call.params
        room = context - len(prompt)
        if not call.max_tokens_asked and room > 0:
            # The default is no more than there is room for; what was asked for is the engine's to check.
            params = params.model_copy(update={"max_tokens": min(params.max_tokens or room, room)})
        return GenerationRequest(
            prompt, params, scope=call.scope, prediction=prediction, lookup=call.lookup, request_id=call.request_id
        )

    async def _watch_cancellation(self) -> None:
        while True:
            await asyncio.sleep(CANCEL_PERIOD)
            for running in self._running:
                if not running.stopped and running.reply.cancelled():
                    running.stop()

    def _begin_end(self) -> None:
        self._end_of_all = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        self._watch.cancel()
        await asyncio.wait({self._watch})
        while self._tasks:
            for running in self._running:
                running.generation.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_PERIOD)
        self._loop.stop()


def _kind(error: EngineError) -> Failure:
    if isinstance(error, RequestError):
        return "invalid"
    return "unavailable" if isinstance(error, QueueFullError | EngineClosedError) else "internal"


def _tell(reply: Reply, kind: Failure, message: str) -> None:
    try:
        reply.fail(kind, message)
    except Exception:
        log.exception("an error could not be sent")
