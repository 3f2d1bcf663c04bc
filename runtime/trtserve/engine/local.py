"""The local engine: one thread that owns every sequence, slot and cache, over an executor that computes the model.

Each turn of its loop: read the inbox; admit waiting requests to slots; prefill, at most one chunk's worth of tokens,
so that a long prompt does not hold up running sequences; then one round for all decoding sequences: draft, verify and
accept (inside the executor's step), settle, emit. Events reach their readers at the end of the turn, after the
counters that include them.

Only the inbox, the registry of unfinished sequences and the counters are shared with other threads.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trtserve.drafters.base import ChainDrafter
from trtserve.engine.chain import ChainRounds
from trtserve.engine.chain_cost import ChainGate
from trtserve.engine.drafting import CountedCache, Drafter, Proposal, SharedCacheFile, TextTokenizer
from trtserve.engine.emit import TextStream
from trtserve.engine.generation import Event, LocalGeneration, deliver
from trtserve.engine.protocol import (
    Delta,
    EngineClosedError,
    EngineMetrics,
    Finish,
    FinishReason,
    GenerationRequest,
    QueueFullError,
    Scope,
    Source,
    TokenOut,
)
from trtserve.engine.requests import check_parameter_tokens, check_scope, output_budget, token_array
from trtserve.engine.sequence import Ending, Sequence
from trtserve.engine.slots import SlotTable
from trtserve.engine.stats import EngineStats, Gauges, Turn
from trtserve.engine_dir import Manifest
from trtserve.executor.base import Executor, StepInput, StepOutput, TokenLogprobs
from trtserve.lookup.shared import scope_name
from trtserve.sampling import SamplingState
from trtserve.settings import Speculative

_log = logging.getLogger(__name__)

#: The smallest gain that is worth a copy from another slot, in tokens. Copying keys and values is far cheaper than
#: computing them, but a few tokens more or less do not change what a chunk costs.
COPY_MIN = 8
#: Executor failures in a row, without a good step between them, after which the engine calls itself unhealthy.
MAX_FAILURES = 3

Command = tuple[Literal["submit", "cancel", "close"], Sequence | None]

#: Told of a finished request: its scope, prompt, output and prediction, the last three as int32 arrays of token ids.
Recorder = Callable[[Scope, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]], None]


@dataclass(frozen=True)
class Drafts:
    """What one sequence puts through this round's verify: a copy, or a drafter's own chain (source ``model``)."""

    tokens: NDArray[np.int32]
    source: Source


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
        if max_queue < 1:
            raise ValueError(f"max_queue is {max_queue}; allowed: 1 or more")
        info = executor.info
        self.manifest = manifest
        self.info = info
        self._executor = executor
        self._drafter = drafter
        self._recorder = recorder
        self._tokenizer = tokenizer
        self._speculative = manifest.speculative if speculative is None else speculative
        self._hermetic = hermetic
        self._shared_cache = shared_cache
        self._shared_cache_file = shared_cache_file
        self._scope_name = partial(scope_key, manifest) if shared_cache_file is None else shared_cache_file.names
        self._copy_min = copy_min
        self._max_unfinished = max_queue + info.max_batch_size
        self._max_queue = max_queue

        # Shared with other threads.
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._state = threading.Condition()
        self._unfinished: set[Sequence] = set()
        self._draining = False
        self._closed = False
        self._crash: BaseException | None = None
        self._failures = 0
        self._service_time = 1.0
        self._stats = EngineStats(info.max_batch_size * info.max_seq_len)

        # The scheduler thread's own.
        self._chains: ChainRounds | None = None
        if chain_drafter is not None:
            gate = ChainGate.of(manifest, info.device)
            self._chains = ChainRounds(chain_drafter, self._speculative.num_drafts, info.vocab_size, gate)
        self._slots = SlotTable(info.max_batch_size, reuse=not hermetic)
        self._waiting: deque[Sequence] = deque()
        self._prefilling: deque[Sequence] = deque()
        self._decoding: list[Sequence] = []
        self._turn = Turn()
        self._outbox: list[tuple[LocalGeneration, Event]] = []
        self._ended: list[Sequence] = []
        self._drafter_error_logged = False
        self._rows = np.empty(max((t.batch * t.rows for t in info.tiers if t.name != "prefill"), default=0), np.int32)

        self._thread = threading.Thread(target=self._run, name="trtserve-engine", daemon=True)
        self._thread.start()
        # Native code must not be running when the interpreter goes away under it.
        atexit.register(self.close)

    # ---- any thread -------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether requests can be expected to succeed: the thread lives and the executor does not fail every time."""
        return self._thread.is_alive() and self._crash is None and self._failures < MAX_FAILURES

    def submit(self, request: GenerationRequest) -> LocalGeneration:
        """Queue a request, from any thread. Raises RequestError, QueueFullError or EngineClosedError at once."""
        vocab_size = self.info.vocab_size
        prompt = token_array(request.prompt, vocab_size, "prompt")
        prediction = token_array(request.prediction, vocab_size, "prediction")
        check_parameter_tokens(request, vocab_size)
        check_scope(request.scope)
        sequence = Sequence(request, prompt, prediction, output_budget(request, len(prompt), self.info.max_seq_len))
        sequence.generation = LocalGeneration(request, partial(self._send, "cancel", sequence))
        if not (self._thread.is_alive() or self._closed):
            # A fork leaves all threads but its own behind, and a lock they held stays held.
            raise EngineClosedError("the engine's thread is not in this process (a fork?); load the engine here")
        with self._state:
            if self._crash is not None:
                raise EngineClosedError(f"the engine stopped after an internal error: {self._crash}")
            if self._draining or self._closed:
                raise EngineClosedError("the engine is shutting down and takes no new requests")
            if len(self._unfinished) >= self._max_unfinished:
                raise QueueFullError(
                    f"{self._max_queue} requests are waiting already; the queue is full", self._retry_after()
                )
            self._unfinished.add(sequence)
            self._send("submit", sequence)
        return sequence.generation

    def metrics(self) -> EngineMetrics:
        """A snapshot as of the end of the last turn; waiting requests are counted as of now."""
        with self._state:
            return self._stats.snapshot(len(self._unfinished))

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for running ones. False when ``timeout`` seconds passed first; then they are
        cancelled."""
        with self._state:
            self._draining = True
            done = self._state.wait_for(lambda: not self._unfinished, timeout)
            for sequence in self._unfinished:
                self._send("cancel", sequence)
        if self._shared_cache_file is not None:
            self._shared_cache_file.save()
        return done

    def close(self) -> None:
        """Cancel what runs and free everything. A second call does nothing."""
        with self._state:
            if not self._closed:
                self._closed = True
                self._send("close", None)
        self._thread.join()
        atexit.unregister(self.close)
        if self._shared_cache_file is not None:
            self._shared_cache_file.close()

    def _send(self, command: Literal["submit", "cancel", "close"], sequence: Sequence | None) -> None:
        self._inbox.put((command, sequence))

    def _retry_after(self) -> int:
        """Seconds until a place in the queue is likely, from how long requests took lately."""
        return min(max(math.ceil(self._service_time / self.info.max_batch_size), 1), 60)

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
            with self._state:
                self._crash = e
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
                self._start_drafter(sequence)
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
            self._failures += 1
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
        drafts = self._draft(batch)
        if self._chains is not None:
            self._draft_chains(self._chains, batch, drafts)
        step = self._pack(batch, drafts)
        started = perf_counter()
        try:
            out = self._executor.step(step)
        except Exception as e:
            self._turn.forward_seconds += perf_counter() - started
            self._fail_round(batch, e)
            return
        ended = perf_counter()
        self._failures = 0
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
                error = "no token could be chosen: the request bans all of them, or the model gave no finite logits"
                self._end(sequence, "error", error=error, trusted=False)
            else:
                count = accepted[b] + 1
                self._settle(sequence, drafts[b], targets[start : start + count], out, b, start)
            start += rows

    def _draft(self, batch: Tokens[Sequence]) -> list[Drafts | None]:
        """A copy for each sequence that has one. [B]"""
        copies: list[Drafts | None] = [None] * len(batch)
        most = self._most_drafts(len(batch))
        if self._drafter is None or most < 1:
            return copies
        takers = [b for b, s in enumerate(batch) if s.drafter is not None and s.remaining > 1]
        if not takers:
            return copies
        try:
            proposals = self._propose(self._drafter, [batch[b] for b in takers], most)
        except Exception as e:
            self._log_drafter_error("propose", e)
            proposals = self._propose_singly(self._drafter, [batch[b] for b in takers], most)
        for b, proposal in zip(takers, proposals, strict=True):
            if proposal is None or proposal.source is None:
                continue
            tokens = np.asarray(proposal.tokens, np.int32)
            if len(tokens) > min(most, batch[b].remaining - 1) or tokens.min() < 0 or tokens.max() >= self._vocab:
                self._drop_drafter(batch[b], "propose", ValueError("drafts beyond the limit or the vocabulary"))
                continue
            copies[b] = Drafts(tokens, proposal.source)
        return copies

    def _draft_chains(self, chains: ChainRounds, batch: Tokens[Sequence], drafts: list[Drafts | None]) -> None:
        """Put the drafter's own chain into ``drafts`` of the sequences without a copy. Its time is that of forwards."""
        started = perf_counter()
        copied = [0 if copy is None else len(copy.tokens) for copy in drafts]
        for b, tokens in chains.draft(batch, copied, self.info.max_rows(len(batch)) - 1):
            drafts[b] = Drafts(tokens, "model")
        self._turn.forward_seconds += perf_counter() - started

    def _propose(self, drafter: Drafter, takers: Tokens[Sequence], most: int) -> Tokens[Proposal | None]:
        limits = np.array([min(most, s.remaining - 1) for s in takers], np.int32)
        proposals = drafter.propose([s.drafter for s in takers if s.drafter is not None], limits)
        if len(proposals) != len(takers):
            raise ValueError(f"{len(proposals)} proposals for {len(takers)} sequences")
        for sequence in takers:
            self._note_drafter(sequence)
        return proposals

    def _propose_singly(self, drafter: Drafter, takers: Tokens[Sequence], most: int) -> list[Proposal | None]:
        """After a failed call for all: find out whose it was. That one goes on without copies."""

        def propose_one(sequence: Sequence) -> Proposal | None:
            try:
                assert sequence.drafter is not None
                sequence.drafter.abandon()
                return self._propose(drafter, [sequence], most)[0]
            except Exception as e:
                self._drop_drafter(sequence, "propose", e)
                return None

        return [propose_one(sequence) for sequence in takers]

    def _most_drafts(self, batch: int) -> int:
        """Most drafts of a copy in a round of ``batch`` sequences: the settings' limit within the tier's rows."""
        lookup = self._speculative.prompt_lookup
        if lookup is None or batch > lookup.max_seqs:
            return 0
        return min(lookup.max_drafts if batch == 1 else lookup.batch_max_drafts, self.info.max_rows(batch) - 1)

    def _pack(self, batch: Tokens[Sequence], drafts: Tokens[Drafts | None]) -> StepInput:
        """The round as the executor takes it: per sequence its last token, then its drafts."""
        rows, end = self._rows, 0
        slots, lengths, num_rows = [], [], []
        for sequence, own in zip(batch, drafts, strict=True):
            assert sequence.slot is not None
            slots.append(sequence.slot.index)
            lengths.append(sequence.length)
            rows[end] = sequence.last_token
            start, end = end, end + 1
            if own is not None:
                end += len(own.tokens)
                rows[start + 1 : end] = own.tokens
            num_rows.append(end - start)
        return StepInput(
            slots=np.array(slots, np.int32),
            lengths=np.array(lengths, np.int32),
            num_rows=np.array(num_rows, np.int32),
            tokens=rows[:end],
            sampling=[s.sampling for s in batch],
        )

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
        if sequence.drafter is not None:
            try:
                if drafts is not None and source != "model":
                    sequence.drafter.settle(accepted)
                sequence.drafter.observe(committed)
                self._note_drafter(sequence)
            except Exception as e:
                self._drop_drafter(sequence, "settle", e)
        spans = sequence.text.take()
        delta = Delta(
            text=spans[0][0] if len(spans) == 1 else "".join(text for text, _ in spans),
            tokens=_tokens_out(tokens[:kept], source, accepted, out.logprobs[b]),
            spans=spans,
        )
        self._outbox.append((sequence.generation, delta))
        if ending is not None:
            self._end(sequence, ending.reason, ending)

    def _fail_round(self, batch: Tokens[Sequence], error: Exception) -> None:
        """The executor failed: end the round's sequences, trust nothing that its slots hold, and live on."""
        _log.error("a round of %d sequences failed", len(batch), exc_info=error)
        self._failures += 1
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
        if self._drafter is not None and sequence.drafter is not None:
            store = reason in ("stop", "length") and not self._hermetic
            self._guard("finish", partial(self._drafter.finish, sequence.drafter, store=store))
            sequence.drafter = None
        if self._recorder is not None and reason in ("stop", "length"):
            output = sequence.tokens[sequence.prompt_len :]
            self._recorder(sequence.scope, sequence.prompt, output, sequence.prediction)
        if sequence.admitted_at is not None:
            # An exponential average: recent requests tell most about the next.
            self._service_time += 0.2 * (perf_counter() - sequence.admitted_at - self._service_time)
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
        self._stats.add(turn, self._gauges())
        before = perf_counter()
        deliver(outbox)
        if ended:
            with self._state:
                self._unfinished.difference_update(ended)
                self._state.notify_all()
        self._turn.scheduler_seconds = perf_counter() - before

    def _gauges(self) -> Gauges:
        gauges = Gauges(requests_running=len(self._prefilling) + len(self._decoding))
        windows = drafting = 0
        for line in (self._prefilling, self._decoding):
            for sequence in line:
                gauges.kv_tokens_used += sequence.length
                if sequence.drafter is not None:
                    drafting += 1
                    windows += sequence.window
                    gauges.sequences_backing_off += sequence.backing_off
        if drafting:
            gauges.mean_window = windows / drafting
        if (cache := self._shared_cache) is not None:
            shared = cache.stats()
            gauges.shared_cache_bytes = shared.bytes
            gauges.shared_cache_budget_bytes = shared.budget
            gauges.shared_cache_scopes = shared.scopes
            gauges.shared_cache_evictions_total = shared.evictions
        return gauges

    def _stop(self) -> None:
        """The thread's last act: nobody who waits is left waiting, and the executor is freed."""
        with self._state:
            self._closed = True
            left = list(self._unfinished)
        error = None if self._crash is None else f"the engine stopped after an internal error: {self._crash}"
        reason: FinishReason = "cancelled" if error is None else "error"
        events: list[tuple[LocalGeneration, Event]] = list(self._outbox)
        events += [(s.generation, Finish(reason, s.stats(), error=error)) for s in left if not s.done]
        self._turn.finished += [reason for s in left if not s.done]
        self._prefilling.clear()
        self._decoding.clear()
        self._stats.add(self._turn, Gauges())
        deliver(events)
        with self._state:
            self._unfinished.clear()
            self._state.notify_all()
        try:
            self._executor.close()
        except Exception:
            _log.exception("the executor could not be closed")
        if self._chains is not None:
            self._chains.close()

    # ---- the drafter: whatever it does, the engine goes on ----------------------------------------------------------

    @property
    def _vocab(self) -> int:
        return self.info.vocab_size

    def _start_drafter(self, sequence: Sequence) -> None:
        request = sequence.request
        if self._drafter is None or not request.lookup:
            return
        scope = None if self._hermetic else self._scope_name(request.scope)
        try:
            sequence.drafter = self._drafter.start(sequence.prompt, prediction=sequence.prediction, scope=scope)
            self._note_drafter(sequence)
        except Exception as e:
            self._drop_drafter(sequence, "start", e)

    def _note_drafter(self, sequence: Sequence) -> None:
        """Keep what the metrics show of a drafter, so that reading them never touches it from another thread."""
        drafter = sequence.drafter
        if drafter is not None:
            sequence.window, sequence.backing_off = drafter.window, drafter.backing_off
            skipped = drafter.rounds_skipped
            self._turn.rounds_skipped += skipped - sequence.rounds_skipped
            sequence.rounds_skipped = skipped

    def _drop_drafter(self, sequence: Sequence, doing: str, error: Exception) -> None:
        """A drafter failed for one sequence: it goes on without copies."""
        self._log_drafter_error(doing, error)
        if self._drafter is not None and sequence.drafter is not None:
            self._guard("finish", partial(self._drafter.finish, sequence.drafter, store=False))
        sequence.drafter = None

    def _guard(self, doing: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as e:
            self._log_drafter_error(doing, e)

    def _log_drafter_error(self, doing: str, error: Exception) -> None:
        if not self._drafter_error_logged:
            self._drafter_error_logged = True
            _log.error("the drafter failed in %s; sequences go on without copies", doing, exc_info=error)


def scope_key(manifest: Manifest, scope: Scope) -> str:
    """Names a partition of the shared cache: the model and tokenizer, and whose text it is."""
    return scope_name(manifest.model_key, scope.adapter, scope.tenant, scope.salt)


def _tokens_out(
    tokens: Tokens[int], source: Source | None, accepted: int, logprobs: Tokens[TokenLogprobs] | None
) -> tuple[TokenOut, ...]:
    if logprobs is None:
        return tuple(TokenOut(token, source if i < accepted else None) for i, token in enumerate(tokens))
    return tuple(
        TokenOut(
            token,
            source if i < accepted else None,
            float(entry.chosen),
            tuple(zip(entry.top_tokens.tolist(), entry.top_values.tolist(), strict=True)),
        )
        for i, (token, entry) in enumerate(zip(tokens, logprobs, strict=False))
    )
