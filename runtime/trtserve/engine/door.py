"""The engine's front door: who may come in, who is inside, and when it closes behind the last.

A request is inside from its submission to its Finish, whether it waits or runs. Every engine has one door; whoever
submits, drains or reads metrics meets it from any thread, and so does the engine's own thread when a request ends.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.generation import LocalGeneration
from trtserve.engine.protocol import (
    EngineClosedError,
    FinishReason,
    GenerationRequest,
    QueueFullError,
    Scope,
)
from trtserve.engine.requests import check_parameter_tokens, check_scope, output_budget, token_array
from trtserve.engine.sequence import Sequence

_log = logging.getLogger(__name__)

#: Failures in a row, without a success between them, after which an engine calls itself unhealthy.
MAX_FAILURES = 3
#: Most seconds that a client is told to wait before it tries again.
MAX_RETRY_AFTER = 60

#: Told of a finished request: its scope, prompt, output and prediction, the last three as int32 arrays of token ids.
Recorder = Callable[[Scope, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]], None]


class FrontDoor:
    """``slots``: requests that run at once; ``max_queue``: those that may wait besides.

    Raises ValueError for a queue that nobody may wait in.
    """

    def __init__(
        self, *, vocab_size: int, max_seq_len: int, slots: int, max_queue: int, recorder: Recorder | None = None
    ) -> None:
        if max_queue < 1:
            raise ValueError(f"max_queue is {max_queue}; allowed: 1 or more")
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len
        self._slots = slots
        self._max_queue = max_queue
        self._recorder = recorder
        self._state = threading.Condition()
        self._inside: set[Sequence] = set()
        self._draining = False
        self._closed = False
        self._crash: BaseException | None = None
        self._failures = 0
        self._service_time = 1.0

    # ---- coming in --------------------------------------------------------------------------------------------------

    def check(self, request: GenerationRequest, cancel: Callable[[Sequence], None]) -> Sequence:
        """The sequence of a request that the engine can serve, with its generation. Raises RequestError.

        ``cancel`` is what cancelling the generation calls, from any thread.
        """
        prompt = token_array(request.prompt, self._vocab_size, "prompt")
        # No output is longer than the context. What a prediction has beyond it would be indexed for every choice.
        prediction = token_array(request.prediction, self._vocab_size, "prediction", most=self._max_seq_len)
        check_parameter_tokens(request, self._vocab_size)
        check_scope(request.scope)
        sequence = Sequence(request, prompt, prediction, output_budget(request, len(prompt), self._max_seq_len))
        sequence.generation = LocalGeneration(request, lambda: cancel(sequence))
        return sequence

    def enter(self, sequence: Sequence, start: Callable[[Sequence], None]) -> None:
        """Let a sequence in and ``start`` it, before anybody can find it here. Raises EngineClosedError or
        QueueFullError."""
        with self._state:
            if self._crash is not None:
                raise EngineClosedError(f"the engine stopped after an internal error: {self._crash}")
            if self._draining or self._closed:
                raise EngineClosedError("the engine is shutting down and takes no new requests")
            if len(self._inside) >= self._max_queue + self._slots:
                raise QueueFullError(
                    f"{self._max_queue} requests are waiting already; the queue is full", self.retry_after
                )
            self._inside.add(sequence)
            start(sequence)

    @property
    def retry_after(self) -> int:
        """Seconds until a place in the queue is likely, from how long requests took lately."""
        return min(max(math.ceil(self._service_time / self._slots), 1), MAX_RETRY_AFTER)

    # ---- inside -----------------------------------------------------------------------------------------------------

    @property
    def num_inside(self) -> int:
        with self._state:
            return len(self._inside)

    def inside(self) -> list[Sequence]:
        """Everyone who is inside, in no order."""
        with self._state:
            return list(self._inside)

    def served(self, seconds: float) -> None:
        """A request took so long, from where the engine began with it."""
        # An exponential average: recent requests tell most about the next.
        self._service_time += 0.2 * (seconds - self._service_time)

    def record(self, sequence: Sequence, reason: FinishReason) -> None:
        """Tell the recorder of a sequence that came to its own end. One that raises is told of no other."""
        if self._recorder is None or reason not in ("stop", "length"):
            return
        output = sequence.tokens[sequence.prompt_len :]
        try:
            self._recorder(sequence.scope, sequence.prompt, output, sequence.prediction)
        except Exception:
            _log.exception("the recorder failed; nothing is recorded any more")
            self._recorder = None

    def leave(self, sequences: Collection[Sequence]) -> None:
        """These got their Finish."""
        if sequences:
            with self._state:
                self._inside.difference_update(sequences)
                self._state.notify_all()

    # ---- health -----------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether requests do not fail one after the other."""
        return self._crash is None and self._failures < MAX_FAILURES

    def failed(self) -> None:
        """The engine failed on a request, or on a round of them."""
        self._failures += 1

    def succeeded(self) -> None:
        """The failures before this are no row any more."""
        self._failures = 0

    # ---- closing ----------------------------------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def crash(self) -> BaseException | None:
        """What stopped the engine, where nobody meant to."""
        return self._crash

    def drain(self, timeout: float | None, cancel: Callable[[Sequence], None]) -> bool:
        """Let nobody in any more and wait for those inside. False when ``timeout`` seconds passed first; then they are
        cancelled."""
        with self._state:
            self._draining = True
            done = self._state.wait_for(lambda: not self._inside, timeout)
            for sequence in self._inside:
                cancel(sequence)
            return done

    def close(self) -> bool:
        """Let nobody in any more. Whether it was open."""
        with self._state:
            first, self._closed = not self._closed, True
            return first

    def crashed(self, error: BaseException) -> None:
        """The engine stopped and serves nobody from here on."""
        with self._state:
            self._crash = error
