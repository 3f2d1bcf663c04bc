"""The engine over TensorRT-LLM's own executor (1.3 and later): its scheduler and kernels, our drafts and text.

One thread runs an event loop that owns every sequence. A request is a task on it: it hands the tokens to
``LLM.generate_async`` and reads what comes back. Each piece that comes back is one or more rounds; the drafter's
announcements say where one ends and which of its tokens were drafts (see ``feed``). Stop strings, end tokens and the
budget are judged here, by the same code as for every target; what TensorRT-LLM generated beyond them is dropped and its
request aborted.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import logging
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from trtserve.engine.door import FrontDoor, Recorder
from trtserve.engine.drafting import TextTokenizer
from trtserve.engine.emit import TextStream
from trtserve.engine.generation import LocalGeneration, deliver
from trtserve.engine.protocol import (
    Delta,
    EngineMetrics,
    Finish,
    FinishReason,
    GenerationRequest,
    RequestError,
    Source,
    TokenOut,
)
from trtserve.engine.sequence import Ending, Sequence
from trtserve.engine.stats import EngineStats, Gauges, Turn, gauges
from trtserve.engine.tensorrt_llm import sampling
from trtserve.engine.tensorrt_llm.batch_drafts import common_prefix
from trtserve.engine.tensorrt_llm.carried import Carried, Carrier
from trtserve.engine.tensorrt_llm.feed import FeedReader
from trtserve.engine.tensorrt_llm.scopes import Salts
from trtserve.engine_dir import Manifest
from trtserve.sampling import SamplingState

_log = logging.getLogger(__name__)

#: How long a closing engine waits for TensorRT-LLM to confirm that its requests are cancelled.
_SHUTDOWN_SECONDS = 30.0
#: Every sequence's round is counted by itself, so gauges, which look at all sequences, are no older than this but not
#: made for each: their time would grow with the square of the batch.
_GAUGES_SECONDS = 0.1


class PyTorchEngine:
    """``engine.protocol.Engine`` over a ``tensorrt_llm.LLM``.

    Args:
        llm: the model, loaded; this closes it.
        package: the ``tensorrt_llm`` package ``llm`` is of.
        feed: where our drafter announces its rounds; None without it.
        carrier: how a request takes something along for our drafter; None: it cannot, or there is no such drafter.
        chain: drafts of a round, where TensorRT-LLM's own drafter makes them; counted as source ``model``.
        adapters: name to (number, path) of each LoRA adapter that a request's scope may name.
        recorder: called with each finished request's scope, prompt, output and prediction.
    """

    def __init__(
        self,
        llm: Any,
        package: Any,
        tokenizer: TextTokenizer,
        manifest: Manifest,
        salts: Salts,
        *,
        feed: FeedReader | None = None,
        carrier: Carrier | None = None,
        chain: int = 0,
        adapters: Mapping[str, tuple[int, str]] | None = None,
        max_queue: int = 256,
        recorder: Recorder | None = None,
    ) -> None:
        self.manifest = manifest
        self._llm = llm
        self._package = package
        self._tokenizer = tokenizer
        self._salts = salts
        self._feed = feed
        self._carrier = carrier
        self._chain = chain
        self._adapters = dict(adapters or {})
        self._vocab_size = manifest.model.vocab_size

        # Shared with other threads.
        limits = manifest.limits
        self._door = FrontDoor(
            vocab_size=self._vocab_size,
            max_seq_len=limits.max_seq_len,
            slots=limits.max_batch_size,
            max_queue=max_queue,
            recorder=recorder,
        )
        self._stats = EngineStats(limits.max_batch_size * limits.max_seq_len)

        # The loop's own.
        self._running: dict[Sequence, Any] = {}
        self._waiting: deque[Sequence] = deque()
        self._in_slots: set[Sequence] = set()
        self._cancelled: set[Sequence] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds_seen = 0
        self._shut = False
        self._gauges = Gauges()
        self._gauged_at = 0.0

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="trtserve-tensorrt-llm", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # ---- any thread -------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether requests can be expected to be served: the loop lives and they do not fail one after the other."""
        return self._thread.is_alive() and not self._door.closed and self._door.healthy

    @property
    def carries(self) -> bool:
        """Whether requests take their prediction and stop strings along to our drafter."""
        return self._carrier is not None

    def submit(self, request: GenerationRequest) -> LocalGeneration:
        """Queue a request, from any thread. Raises RequestError, QueueFullError or EngineClosedError at once."""
        sequence = self._door.check(request, partial(self._post, self._cancel))
        sampling.check(request, "pytorch")
        if request.scope.adapter and request.scope.adapter not in self._adapters:
            raise RequestError(
                f"adapter {request.scope.adapter!r} is unknown; allowed: {', '.join(self._adapters) or 'none'}", "model"
            )
        self._door.enter(sequence, partial(self._post, self._start))
        return sequence.generation

    def metrics(self) -> EngineMetrics:
        """A snapshot. Running are requests of which TensorRT-LLM sent a token; it does not tell of the others.

        Where running sequences stand is as of a tenth of a second ago, unless one came or ended since.
        """
        return self._stats.snapshot(self._door.num_inside)

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for running ones. False when ``timeout`` seconds passed first; then they are
        cancelled."""
        return self._door.drain(timeout, partial(self._post, self._cancel))

    def close(self) -> None:
        """Cancel what runs and free everything. A second call does nothing."""
        if self._door.close():
            self._post(self._shut_down)
        self._thread.join()
        atexit.unregister(self.close)

    def _post(self, call: Any, *arguments: Any) -> None:
        # After the loop's end there is nothing left to cancel.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    # ---- the loop's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            if not self._shut:
                raise RuntimeError("its event loop was stopped")
        except BaseException as e:
            _log.exception("the engine's thread stopped")
            self._door.crashed(e)
        finally:
            self._stop()

    def _stop(self) -> None:
        """The thread's last act: nobody who waits is left waiting, and TensorRT-LLM is shut down."""
        self._door.close()
        error = f"the engine stopped after an internal error: {self._door.crash}"
        for sequence in self._door.inside():
            self._finish(sequence, "error", error=error)
        if not self._shut:
            self._shut_llm()
        self._loop.close()

    def _shut_llm(self) -> None:
        self._shut = True
        try:
            self._llm.shutdown()
        except Exception:
            _log.exception("TensorRT-LLM could not be shut down")
        if self._feed is not None:
            self._feed.close()

    def _shut_down(self) -> None:
        for sequence in self._door.inside():
            self._cancel(sequence)
        self._loop.create_task(self._finish_up())

    async def _finish_up(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_SHUTDOWN_SECONDS)
            for task in late:
                task.cancel()
        for sequence in self._door.inside():
            self._end(sequence, "cancelled")
        # The executor's shutdown waits for its workers.
        await asyncio.to_thread(self._shut_llm)
        self._loop.stop()

    def _start(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        self._admit()
        task = self._loop.create_task(self._serve(sequence))
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, sequence))

    def _served(self, sequence: Sequence, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A library's panic is no Exception.
            _log.error("request %s failed", sequence.request.request_id, exc_info=error)
            if not sequence.done:
                self._end(sequence, "error", error=f"TensorRT-LLM failed: {error}")

    def _admit(self) -> None:
        """Note who has a slot from now on. TensorRT-LLM does not tell; it has as many, and serves in order."""
        while self._waiting and len(self._in_slots) < self.manifest.limits.max_batch_size:
            self._seat(self._waiting.popleft())

    def _seat(self, sequence: Sequence) -> None:
        sequence.admitted_at = perf_counter()
        self._in_slots.add(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        if sequence.done:
            return
        self._cancelled.add(sequence)
        result = self._running.get(sequence)
        if result is not None:
            self._abort(result)

    def _abort(self, result: Any) -> None:
        try:
            result.abort()
        except Exception:
            _log.exception("a request could not be aborted")

    async def _serve(self, sequence: Sequence) -> None:
        """One request, from its submission to its Finish."""
        try:
            if sequence in self._cancelled:
                self._end(sequence, "cancelled")
                return
            self._prepare(sequence)
            result = self._generate(sequence)
        except Exception as e:
            _log.exception("request %s could not be started", sequence.request.request_id)
            # A value that TensorRT-LLM refuses says nothing about the next request.
            refused = isinstance(e, ValueError)
            self._end(sequence, "error", error=f"the request could not be started: {e}", engine_failed=not refused)
            return
        self._running[sequence] = result
        try:
            async for _ in result:
                if not sequence.done:
                    self._read(sequence, result)
            if not sequence.done:
                self._close_generation(sequence, result)
        except Exception as e:
            _log.exception("request %s failed", sequence.request.request_id)
            if not sequence.done:
                self._end(sequence, "error", error=f"TensorRT-LLM failed: {e}")
        finally:
            self._running.pop(sequence, None)
            self._cancelled.discard(sequence)
            if self._feed is not None:
                # What was announced of it and is read only later would never be forgotten.
                self._feed.drain()
                self._feed.forget(result.request_id)

    def _prepare(self, sequence: Sequence) -> None:
        request = sequence.request
        ends = () if request.params.ignore_eos else self.manifest.tokenizer.eos_token_ids
        sequence.end_tokens = frozenset(ends)
        sequence.sampling = SamplingState.start(
            request.params, sequence.prompt, self._vocab_size, (*ends, *request.params.stop_token_ids)
        )
        sequence.text = TextStream(
            self._tokenizer.stream_decoder(), request.params.stop, request.params.include_stop_str_in_output
        )
        sequence.prefilled = sequence.prompt_len - 1

    def _generate(self, sequence: Sequence) -> Any:
        request = sequence.request
        salt, _ = self._salts.salt(request.scope, lookup=request.lookup)
        adapter = self._adapters.get(request.scope.adapter)
        lora = None
        if adapter is not None:
            number, path = adapter
            requests: Any = importlib.import_module("tensorrt_llm.executor.request")
            lora = requests.LoRARequest(request.scope.adapter, number, path)
        return self._llm.generate_async(
            sequence.prompt.tolist(),
            sampling_params=sampling.llm_sampling(self._package.SamplingParams, sequence, self._vocab_size),
            lora_request=lora,
            streaming=True,
            cache_salt=salt,
            **self._carried(sequence),
        )

    def _carried(self, sequence: Sequence) -> dict[str, Any]:
        """The argument that takes along what our drafter must know of the request; none where there is nothing."""
        params = sequence.params
        # With min_tokens all end tokens but the first are left to this side; see sampling.llm_sampling.
        ends = sorted(sequence.end_tokens)[1:] if params.min_tokens else []
        carried = Carried(sequence.prediction, params.stop, tuple(ends), params.min_tokens)
        if self._carrier is None or not sequence.request.lookup or not carried.worth_it:
            return {}
        return {"conversation_params": self._carrier(carried.to_id())}

    def _read(self, sequence: Sequence, result: Any) -> None:
        """Take the tokens that came, round by round, until one ends the sequence."""
        output = result.outputs[0]
        first, tokens = sequence.num_output, output.token_ids
        if self._feed is not None:
            self._feed.drain()
        now = perf_counter()
        if sequence.first_round_at is None and len(tokens) > first:
            if sequence.admitted_at is None:
                # It was served before its turn.
                self._waiting.remove(sequence)
                self._seat(sequence)
                sequence.admitted_at = now
            sequence.prefill_time = now - sequence.admitted_at
            sequence.first_round_at = now
            sequence.cached_tokens = int(getattr(result, "cached_tokens", 0) or 0)
            self._count(Turn(prompt_tokens=sequence.prompt_len, cached_tokens=sequence.cached_tokens))
        sequence.last_round_at = now
        while not sequence.done and sequence.num_output < len(tokens):
            self._read_round(sequence, result, tokens, output.logprobs, now)
        if sequence.done and not result.finished:
            self._abort(result)

    def _read_round(self, sequence: Sequence, result: Any, tokens: list[int], logprobs: Any, now: float) -> None:
        start = sequence.num_output
        source, drafts, end = self._round_at(sequence, result, start, tokens)
        new = tokens[start:end]
        accepted = min(common_prefix(new, drafts), len(new)) if drafts else 0
        if source == "model":
            accepted = len(new) - 1
        kept, ending = sequence.walk(new, source, accepted)
        accepted = min(accepted, kept)
        committed = np.asarray(new[:kept], np.int32)
        sequence.append(committed)
        sequence.rounds += 1
        turn = Turn(generation_tokens=kept, round_sequences=1, rounds=self._new_rounds())
        proposed = self._chain if source == "model" else len(drafts)
        if source is not None and proposed:
            sequence.proposed[source] += proposed
            sequence.accepted[source] += accepted
            turn.copies.append((source, proposed, accepted))
        self._note_drafter(sequence, result, turn)
        spans = sequence.text.take()
        delta = Delta(
            text="".join(text for text, _ in spans),
            tokens=tuple(
                _token_out(token, source if i < accepted else None, _entry(logprobs, start + i), sequence)
                for i, token in enumerate(new[:kept])
            ),
            spans=spans,
        )
        self._count(turn, anew=now - self._gauged_at >= _GAUGES_SECONDS)
        deliver([(sequence.generation, delta)])
        if ending is not None:
            self._end(sequence, ending.reason, ending)

    def _round_at(
        self, sequence: Sequence, result: Any, start: int, tokens: list[int]
    ) -> tuple[Source | None, tuple[int, ...], int]:
        """(source, drafts, end) of the round that began after ``start`` output tokens."""
        rest = len(tokens)
        if self._feed is None:
            # TensorRT-LLM's own drafter: of a round's tokens all but the last were drafts. The first token has none.
            return ("model" if self._chain and start else None), (), rest
        announced = self._feed.take(result.request_id, start)
        if announced is None:
            following = self._feed.next_start(result.request_id, start)
            return None, (), rest if following is None else min(following, rest)
        end = start + common_prefix(tokens[start:], announced.drafts) + 1
        source: Source | None = announced.source  # type: ignore[assignment]
        return source, announced.drafts, min(end, rest)

    def _close_generation(self, sequence: Sequence, result: Any) -> None:
        """TensorRT-LLM ended a generation that nothing here did."""
        reason = result.outputs[0].finish_reason
        if sequence in self._cancelled or reason == "cancelled":
            self._end(sequence, "cancelled")
        elif reason in ("stop", "length"):
            stop = sequence.last_token if reason == "stop" and sequence.num_output else None
            self._end(sequence, reason, Ending(reason, stop))
        else:
            self._end(sequence, "error", error=f"TensorRT-LLM ended the request: {reason}")

    def _new_rounds(self) -> int:
        """Forwards since the last call: one announcement each, or without a drafter one for each sequence's round."""
        if self._feed is None:
            return 1
        new = self._feed.rounds_total - self._rounds_seen
        self._rounds_seen = self._feed.rounds_total
        return new

    def _note_drafter(self, sequence: Sequence, result: Any, turn: Turn) -> None:
        latest = None if self._feed is None else self._feed.latest(result.request_id)
        if latest is not None:
            sequence.window, sequence.backing_off = latest.window, latest.backing_off
            turn.rounds_skipped += max(latest.rounds_skipped - sequence.rounds_skipped, 0)
            sequence.rounds_skipped = max(latest.rounds_skipped, sequence.rounds_skipped)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        ending: Ending | None = None,
        error: str | None = None,
        *,
        engine_failed: bool = True,
    ) -> None:
        if ending is not None and sequence.num_output and sequence.text.finish(False) is None:
            spans = sequence.text.take()
            if spans:
                text = "".join(t for t, _ in spans)
                deliver([(sequence.generation, Delta(text=text, tokens=(), spans=spans))])
        if reason == "error":
            if engine_failed:
                self._door.failed()
        elif reason != "cancelled":
            self._door.succeeded()
        self._finish(sequence, reason, ending, error)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, ending: Ending | None = None, error: str | None = None
    ) -> None:
        """Let a sequence go, with its Finish."""
        sequence.done = True
        self._cancelled.discard(sequence)
        self._door.record(sequence, reason)
        if sequence.admitted_at is None:
            with contextlib.suppress(ValueError):  # crashed before it came in
                self._waiting.remove(sequence)
        else:
            self._door.served(perf_counter() - sequence.admitted_at)
            self._in_slots.discard(sequence)
        self._admit()
        finish = Finish(reason, sequence.stats(), stop=None if ending is None else ending.stop, error=error)
        self._count(Turn(finished=[reason]))
        deliver([(sequence.generation, finish)])
        self._door.leave([sequence])

    def _count(self, turn: Turn, *, anew: bool = True) -> None:
        """Count a turn. ``anew``: look where all running sequences stand, too."""
        if not anew:
            self._stats.add(turn, self._gauges)
            return
        self._gauged_at = perf_counter()
        running = ((s, s.window > 0) for s in self._running if not s.done and s.first_round_at is not None)
        self._gauges = gauges(running, None if self._feed is None else self._feed.shared)
        self._stats.add(turn, self._gauges)


def _entry(logprobs: Any, index: int) -> Any:
    return logprobs[index] if logprobs and index < len(logprobs) else None


def _token_out(token: int, source: Source | None, entry: Any, sequence: Sequence) -> TokenOut:
    """One token. ``entry``: TensorRT-LLM's mapping of token to log-probability at its position."""
    if entry is None or sequence.params.logprobs is None or token not in entry:
        return TokenOut(token, source)
    ranked = sorted(((t, float(e.logprob)) for t, e in entry.items()), key=lambda pair: (-pair[1], pair[0]))
    return TokenOut(token, source, float(entry[token].logprob), tuple(ranked[: sequence.params.logprobs]))
