"""The local engine: one thread that owns every sequence, slot and cache, over an executor that computes the model.

Each turn of its loop: read the inbox; admit waiting requests to slots; prefill, at most one chunk's worth of tokens,
so that a long prompt does not hold up running sequences; then one round for all decoding sequences: draft, verify and
accept (inside the executor's step), settle, emit. Events reach their readers at the end of the turn, after the
counters that include them.

Only the inbox, the door (``engine.door``) and the counters are shared with other threads. What drafts is apart, so that
its failures stay apart: copies in ``engine.copies``, a drafter's own chains in ``engine.chain``.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Literal

from trtserve.drafters.base import ChainDrafter
from trtserve.engine.chain import ChainRounds
from trtserve.engine.chain_cost import ChainGate
from trtserve.engine.copies import CopyRounds
from trtserve.engine.door import FrontDoor, Recorder
from trtserve.engine.drafting import CountedCache, Drafter, SharedCacheFile, TextTokenizer
from trtserve.engine.emit import TextStream
from trtserve.engine.generation import Event, LocalGeneration, deliver
from trtserve.engine.protocol import (
    Delta,
    EngineClosedError,
    EngineMetrics,
    Finish,
    FinishReason,
    GenerationRequest,
    Scope,
)
from trtserve.engine.rounds import Drafts, RowPacker, tokens_out
from trtserve.engine.sequence import Ending, Sequence
from trtserve.engine.slots import SlotTable
from trtserve.engine.stats import EngineStats, Gauges, Turn, gauges
from trtserve.engine_dir import Manifest
from trtserve.executor.base import Executor, StepOutput
from trtserve.lookup.shared import scope_name
from trtserve.sampling import SamplingState
from trtserve.settings import Speculative

_log = logging.getLogger(__name__)

#: The smallest gain that is worth a copy from another slot, in tokens. Copying keys and values is far cheaper than
#: computing them, but a few tokens more or less do not change what a chunk costs.
COPY_MIN = 8

Command = tuple[Literal["submit", "cancel", "close"], Sequence | None]


class LocalEngine:
    """``engine.protocol.Engine`` over an executor in this process.

    ``speculative`` overrides the manifest's drafting limits (its ``prompt_lookup`` None: no copies). ``hermetic``
    refuses every cross-request channel: no KV reuse, and no scope is given to the drafter. ``shared_cache`` is only
    read, for the metrics. ``shared_cache_file`` names the scopes; ``drain`` saves and ``close`` closes it. The engine
    closes the executor; it does not close the drafter. ``chain_drafter`` drafts in the rounds that have no copy,
    as ``speculative.num_drafts`` and the manifest's cost curves allow; the engine closes it.
    """

    def __init__(
        self,
        executor: Executor,
        drafter: Drafter | None,
        tokenizer: TextTokenizer,
        manifest: Manifest,
        *,
        speculative: Speculative | None = None,
        max_queue: int = 256,
        hermetic: bool = False,
        shared_cache: CountedCache | None = None,
        shared_cache_file: SharedCacheFile | None = None,
        copy_min: int = COPY_MIN,
        chain_drafter: ChainDrafter | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        info = executor.info
        self.manifest = manifest
        self.info = info
        self._executor = executor
        self._tokenizer = tokenizer
        self._shared_cache = shared_cache
        self._shared_cache_file = shared_cache_file
        self._copy_min = copy_min

        # Shared with other threads.
        self._door = FrontDoor(
            vocab_size=info.vocab_size,
            max_seq_len=info.max_seq_len,
            slots=info.max_batch_size,
            max_queue=max_queue,
            recorder=recorder,
        )
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._stats = EngineStats(info.max_batch_size * info.max_seq_len)

        # The scheduler thread's own.
        settings = manifest.speculative if speculative is None else speculative
        names = partial(scope_key, manifest) if shared_cache_file is None else shared_cache_file.names
        self._copies = CopyRounds(drafter, settings.prompt_lookup, info, None if hermetic else names)
        self._chains: ChainRounds | None = None
        if chain_drafter is not None:
            gate = ChainGate.of(manifest, info.device)
            self._chains = ChainRounds(chain_drafter, settings.num_drafts, info.vocab_size, gate)
        self._slots = SlotTable(info.max_batch_size, reuse=not hermetic)
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()
        self._decoding: list[Sequence] = []
        self._turn = Turn()
        self._outbox: list[tuple[LocalGeneration, Event]] = []
        self._ended: list[Sequence] = []
        self._packer = RowPacker(info)

        self._thread = threading.Thread(target=self._run, name="trtserve-engine", daemon=True)
        self._thread.start()
        # Native code must not be running when the interpreter goes away under it.
        atexit.register(self.close)

    # ---- any thread -------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether requests can be expected to succeed: the thread lives and the executor does not fail every time."""
        return self._thread.is_alive() and self._door.healthy

    def submit(self, request: GenerationRequest) -> LocalGeneration:
        """Queue a request, from any thread. Raises RequestError, QueueFullError or EngineClosedError at once."""
        sequence = self._door.check(request, partial(self._send, "cancel"))
        if not (self._thread.is_alive() or self._door.closed):
            # A fork leaves all threads but its own behind, and a lock they held stays held.
            raise EngineClosedError("the engine's thread is not in this process (a fork?); load the engine here")
        self._door.enter(sequence, partial(self._send, "submit"))
        return sequence.generation

    def metrics(self) -> EngineMetrics:
        """A snapshot as of the end of the last turn; waiting requests and saves are counted as of now."""
        file = self._shared_cache_file
        return self._stats.snapshot(self._door.num_inside, None if file is None else file.stats())

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for running ones. False when ``timeout`` seconds passed first; then they are
        cancelled."""
        done = self._door.drain(timeout, partial(self._send, "cancel"))
        if self._shared_cache_file is not None:
            self._shared_cache_file.save()
        return done

    def close(self) -> None:
        """Cancel what runs and free everything. A second call does nothing."""
        if self._door.close():
            self._send("close", None)
        self._thread.join()
        atexit.unregister(self.close)
        if self._shared_cache_file is not None:
            self._shared_cache_file.close()

    def _send(self, command: Literal["submit", "cancel", "close"], sequence: Sequence | None) -> None:
        self._inbox.put((command, sequence))

    # ---- the scheduler's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._receive():
                started = perf_counter()
                self._admit()
                self._prefill()
                self._round()
                self._publish(started)
        except BaseException as e:
            _log.exception("the engine's thread stopped")
            self._door.crashed(e)
        finally:
            self._stop()

    def _receive(self) -> bool:
        """Take what other threads sent; wait for it when there is nothing else to do. False: time to close."""
        idle = not (self._waiting or self._prefilling or self._decoding or self._outbox)
        while True:
            try:
                command, sequence = self._inbox.get(block=idle)
            except Empty:
                return True
            idle = False
            if sequence is None:
                return False
            if command == "submit":
                self._waiting.append(sequence)
            elif command == "cancel" and not sequence.done:
                self._end(sequence, "cancelled")

    def _admit(self) -> None:
        """Give free slots to waiting requests, first come, first served."""
        while self._waiting and self._slots.num_free:
            sequence = self._waiting.popleft()
            sequence.admitted_at = perf_counter()
            request = sequence.request
            end_tokens = () if request.params.ignore_eos else self.manifest.tokenizer.eos_token_ids
            try:
                sequence.end_tokens = frozenset(end_tokens)
                sequence.sampling = SamplingState.start(
                    request.params,
                    sequence.prompt,
                    self.info.vocab_size,
                    (*end_tokens, *request.params.stop_token_ids),
                )
                sequence.text = TextStream(
                    self._tokenizer.stream_decoder(), request.params.stop, request.params.include_stop_str_in_output
                )
            except Exception as e:
                _log.exception("request %s could not be started", request.request_id)
                self._end(sequence, "error", error=f"the request could not be started: {e}")
                continue
            sequence.slot, cached = self._slots.acquire(sequence, sequence.prompt)
            sequence.prefilled = sequence.cached_tokens = cached
            if self._chains is not None:
                self._chains.begin(sequence.slot.index, cached)
            if self._for_prompt(sequence, self._copy_prefix):
                self._copies.start(sequence)
                self._prefilling.append(sequence)

    def _prefill(self) -> None:
        """Prefill one chunk's worth of tokens: of the first sequence in line, then of those that fit whole beside."""
        room = self.info.prefill_chunk
        while self._prefilling:
            sequence = self._prefilling[0]
            if not sequence.prefill_begun:
                sequence.prefill_begun = True
                if not self._for_prompt(sequence, self._copy_prefix):
                    continue
            if sequence.to_prefill:
                if room < self.info.prefill_chunk and sequence.to_prefill > room:
                    return
                before = sequence.prefilled
                if not self._for_prompt(sequence, partial(self._prefill_chunk, most=room)):
                    continue
                room -= sequence.prefilled - before
            if sequence.to_prefill == 0:
                self._prefilling.popleft()
                self._decoding.append(sequence)
                self._turn.prompt_tokens += sequence.prompt_len
                self._turn.cached_tokens += sequence.cached_tokens
            if room == 0:
                return

    def _for_prompt(self, sequence: Sequence, work: Callable[[Sequence], None]) -> bool:
        """Let the executor work on a sequence's prompt. False: it failed, and that sequence alone has ended."""
        started = perf_counter()
        try:
            work(sequence)
        except Exception as e:
            _log.exception("prefill of request %s failed", sequence.request.request_id)
            self._door.failed()
            self._end(sequence, "error", error=f"prefill failed: {e}", trusted=False)
            return False
        finally:
            seconds = perf_counter() - started
            sequence.prefill_time += seconds
            self._turn.prefill_seconds += seconds
        return True

    def _prefill_chunk(self, sequence: Sequence, most: int) -> None:
        assert sequence.slot is not None
        tokens = sequence.unprefilled(most)
        self._executor.prefill(sequence.slot.index, sequence.prefilled, tokens)
        if self._chains is not None:
            self._chains.observe_prefill(sequence.slot.index, sequence.prefilled, tokens)
        sequence.prefilled += len(tokens)

    def _copy_prefix(self, sequence: Sequence) -> None:
        """Take a longer prefix from another slot of the scope. Done on admission, before the next admission takes that
        slot, and again when the prefill begins, so that requests which arrive together share their prefix too."""
        assert sequence.slot is not None
        source, length = self._slots.longest_prefix(sequence.slot, sequence.scope, sequence.prompt)
        if source is not None and length >= sequence.prefilled + self._copy_min:
            self._executor.copy_prefix(source.index, sequence.slot.index, length)
            if self._chains is not None:
                self._chains.copy_prefix(source.index, sequence.slot.index, length)
            sequence.prefilled = sequence.cached_tokens = length

    def _round(self) -> None:
        """One verify for every decoding sequence, and what follows from it."""
        batch = self._decoding.copy()
        if not batch:
            return
        drafts = self._copies.draft(batch)
        if self._chains is not None:
            self._draft_chains(self._chains, batch, drafts)
        step = self._packer.pack(batch, drafts)
        started = perf_counter()
        try:
            out = self._executor.step(step)
        except Exception as e:
            self._turn.forward_seconds += perf_counter() - started
            self._fail_round(batch, e)
            return
        ended = perf_counter()
        self._door.succeeded()
        if self._chains is not None:
            self._chains.observe_step(step, out)
        self._turn.forward_seconds += ended - started
        self._turn.rounds += 1
        self._turn.round_sequences += len(batch)
        targets, accepted = out.targets.tolist(), out.accepted.tolist()
        start = 0
        for b, (sequence, rows) in enumerate(zip(batch, step.num_rows.tolist(), strict=True)):
            sequence.rounds += 1
            if sequence.first_round_at is None:
                sequence.first_round_at = started
            sequence.last_round_at = ended
            if out.failed[b]:
                error = (
                    "no token could be chosen: the request bans all of them, the model gave no finite logits, or the "
                    "executor failed on this request alone"
                )
                self._end(sequence, "error", error=error, trusted=False)
            else:
                count = accepted[b] + 1
                self._settle(sequence, drafts[b], targets[start : start + count], out, b, start)
            start += rows

    def _draft_chains(self, chains: ChainRounds, batch: Tokens[Sequence], drafts: list[Drafts | None]) -> None:
        """Put the drafter's own chain into ``drafts`` of the sequences without a copy. Its time is that of forwards."""
        started = perf_counter()
        copied = [0 if copy is None else len(copy.tokens) for copy in drafts]
        for b, tokens in chains.draft(batch, copied, self.info.max_rows(len(batch)) - 1):
            drafts[b] = Drafts(tokens, "model")
        self._turn.forward_seconds += perf_counter() - started

    def _settle(
        self, sequence: Sequence, drafts: Drafts | None, tokens: list[int], out: StepOutput, b: int, start: int
    ) -> None:
        """Keep a round's tokens up to the first that ends the sequence, tell the drafter, and emit."""
        source = None if drafts is None else drafts.source
        accepted = len(tokens) - 1
        if self._chains is not None and drafts is not None and source == "model":
            self._chains.settle(sequence.slot_index, len(drafts.tokens), accepted)
        try:
            kept, ending = sequence.walk(tokens, source, accepted)
        except Exception as e:
            _log.exception("request %s could not be turned into text", sequence.request.request_id)
            self._end(sequence, "error", error=f"detokenization failed: {e}")
            return
        accepted = min(accepted, kept)
        committed = out.targets[start : start + kept]
        sequence.append(committed)
        self._turn.generation_tokens += kept
        if drafts is not None:
            sequence.proposed[drafts.source] += len(drafts.tokens)
            sequence.accepted[drafts.source] += accepted
            self._turn.copies.append((drafts.source, len(drafts.tokens), accepted))
        self._copies.settle(sequence, drafts, accepted, committed)
        spans = sequence.text.take()
        delta = Delta(
            text=spans[0][0] if len(spans) == 1 else "".join(text for text, _ in spans),
            tokens=tokens_out(tokens[:kept], source, accepted, out.logprobs[b]),
            spans=spans,
        )
        self._outbox.append((sequence.generation, delta))
        if ending is not None:
            self._end(sequence, ending.reason, ending)

    def _fail_round(self, batch: Tokens[Sequence], error: Exception) -> None:
        """The executor failed: end the round's sequences, trust nothing that its slots hold, and live on."""
        _log.error("a round of %d sequences failed", len(batch), exc_info=error)
        self._door.failed()
        for sequence in batch:
            self._end(sequence, "error", error=f"the executor failed: {error}", trusted=False)
        self._slots.forget()

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        ending: Ending | None = None,
        error: str | None = None,
        trusted: bool = True,
    ) -> None:
        """Take a sequence out of wherever it is. ``trusted``: what its slot holds is what it committed."""
        sequence.done = True
        for line in (self._waiting, self._prefilling, self._decoding):
            if sequence in line:
                line.remove(sequence)
        if sequence.slot is not None:
            if trusted:
                self._slots.release(sequence.slot)
            else:
                self._slots.reset(sequence.slot)
            sequence.slot = None
        self._copies.finish(sequence, ended=reason in ("stop", "length"))
        self._door.record(sequence, reason)
        if sequence.admitted_at is not None:
            self._door.served(perf_counter() - sequence.admitted_at)
        stats = sequence.stats()
        stop = None if ending is None else ending.stop
        self._outbox.append((sequence.generation, Finish(reason, stats, stop=stop, error=error)))
        self._turn.finished.append(reason)
        self._ended.append(sequence)

    def _publish(self, started: float) -> None:
        """Close the turn: count it, then let readers see its events, then forget what ended."""
        turn, outbox, ended = self._turn, self._outbox, self._ended
        self._turn, self._outbox, self._ended = Turn(), [], []
        in_executor = turn.prefill_seconds + turn.forward_seconds
        # On top of what delivering the turn before took.
        turn.scheduler_seconds += perf_counter() - started - in_executor
        turn.rounds_skipped = self._copies.take_skipped()
        self._stats.add(turn, self._gauges())
        before = perf_counter()
        deliver(outbox)
        self._door.leave(ended)
        self._turn.scheduler_seconds = perf_counter() - before

    def _gauges(self) -> Gauges:
        running = ((s, s.drafter is not None) for line in (self._prefilling, self._decoding) for s in line)
        return gauges(running, None if self._shared_cache is None else self._shared_cache.stats())

    def _stop(self) -> None:
        """The thread's last act: nobody who waits is left waiting, and the executor is freed."""
        self._door.close()
        left = self._door.inside()
        crash = self._door.crash
        error = None if crash is None else f"the engine stopped after an internal error: {crash}"
        reason: FinishReason = "cancelled" if error is None else "error"
        events: list[tuple[LocalGeneration, Event]] = list(self._outbox)
        events += [(s.generation, Finish(reason, s.stats(), error=error)) for s in left if not s.done]
        self._turn.finished += [reason for s in left if not s.done]
        self._prefilling.clear()
        self._decoding.clear()
        self._turn.rounds_skipped = self._copies.take_skipped()
        self._stats.add(self._turn, Gauges())
        deliver(events)
        self._door.leave(left)
        try:
            self._executor.close()
        except Exception:
            _log.exception("the executor could not be closed")
        if self._chains is not None:
            self._chains.close()


def scope_key(manifest: Manifest, scope: Scope) -> str:
    """Names a partition of the shared cache: the model and tokenizer, and whose text it is."""
    return scope_name(manifest.model_key, scope.adapter, scope.tenant, scope.salt)
