"""The engine's counters. The scheduler's thread writes them once per turn under the lock, anyone reads a snapshot."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from trtserve.engine.drafting import SaveStats, SharedCacheStats
from trtserve.engine.protocol import SOURCES, EngineMetrics, FinishReason, Source
from trtserve.engine.sequence import Sequence

_REASONS: tuple[FinishReason, ...] = ("stop", "length", "cancelled", "error")


@dataclass
class Turn:
    """What one turn of the scheduler's loop adds to the counters."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    rounds: int = 0
    round_sequences: int = 0
    rounds_skipped: int = 0
    prefill_seconds: float = 0.0
    forward_seconds: float = 0.0
    scheduler_seconds: float = 0.0
    copies: list[tuple[Source, int, int]] = field(default_factory=list)
    """(source, drafts proposed, drafts accepted) of every copy verified."""
    finished: list[FinishReason] = field(default_factory=list)


@dataclass
class Gauges:
    """Where the engine stands after a turn."""

    requests_running: int = 0
    kv_tokens_used: int = 0
    mean_window: float = 0.0
    sequences_backing_off: int = 0
    shared_cache_bytes: int = 0
    shared_cache_budget_bytes: int = 0
    shared_cache_scopes: int = 0
    shared_cache_evictions_total: int = 0


def gauges(running: Iterable[tuple[Sequence, bool]], shared: SharedCacheStats | None) -> Gauges:
    """Where the engine stands. ``running``: each sequence that has a slot, and whether a drafter follows it."""
    found = Gauges()
    windows = followed = 0
    for sequence, drafting in running:
        found.requests_running += 1
        found.kv_tokens_used += sequence.length
        if drafting:
            followed += 1
            windows += sequence.window
            found.sequences_backing_off += sequence.backing_off
    if followed:
        found.mean_window = windows / followed
    if shared is not None:
        found.shared_cache_bytes = shared.bytes
        found.shared_cache_budget_bytes = shared.budget
        found.shared_cache_scopes = shared.scopes
        found.shared_cache_evictions_total = shared.evictions
    return found


class EngineStats:
    """Counters and gauges; a snapshot never shows half a turn."""

    def __init__(self, kv_tokens_capacity: int) -> None:
        self._lock = threading.Lock()
        self._kv_tokens_capacity = kv_tokens_capacity
        self._total = Turn()
        self._drafts = dict.fromkeys(SOURCES, 0)
        self._accepted = dict.fromkeys(SOURCES, 0)
        self._copies = dict.fromkeys(SOURCES, 0)
        self._finished = dict.fromkeys(_REASONS, 0)
        self._gauges = Gauges()

    def add(self, turn: Turn, gauges: Gauges) -> None:
        """Count a turn. ``gauges`` is kept, not copied."""
        with self._lock:
            total = self._total
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(turn, name))
            for source, proposed, accepted in turn.copies:
                self._copies[source] += 1
                self._drafts[source] += proposed
                self._accepted[source] += accepted
            for reason in turn.finished:
                self._finished[reason] += 1
            self._gauges = gauges

    def snapshot(self, unfinished: int, saves: SaveStats | None = None) -> EngineMetrics:
        """Everything at the end of one turn. Of ``unfinished`` requests those that do not run are waiting.

        ``saves``: what became of the shared cache's saves, where it has a file.
        """
        with self._lock:
            total, gauges = self._total, self._gauges
            return EngineMetrics(
                requests_running=gauges.requests_running,
                requests_waiting=max(unfinished - gauges.requests_running, 0),
                kv_tokens_used=gauges.kv_tokens_used,
                kv_tokens_capacity=self._kv_tokens_capacity,
                prompt_tokens_total=total.prompt_tokens,
                cached_tokens_total=total.cached_tokens,
                generation_tokens_total=total.generation_tokens,
                rounds_total=total.rounds,
                round_sequences_total=total.round_sequences,
                rounds_skipped_total=total.rounds_skipped,
                draft_tokens_total={str(k): v for k, v in self._drafts.items()},
                accepted_tokens_total={str(k): v for k, v in self._accepted.items()},
                copies_total={str(k): v for k, v in self._copies.items()},
                mean_window=gauges.mean_window,
                sequences_backing_off=gauges.sequences_backing_off,
                shared_cache_bytes=gauges.shared_cache_bytes,
                shared_cache_budget_bytes=gauges.shared_cache_budget_bytes,
                shared_cache_scopes=gauges.shared_cache_scopes,
                shared_cache_evictions_total=gauges.shared_cache_evictions_total,
                shared_cache_saves_total=saves.saves if saves else 0,
                shared_cache_save_failures_total=saves.failures if saves else 0,
                shared_cache_save_seconds=saves.seconds if saves else 0.0,
                shared_cache_save_bytes=saves.bytes if saves else 0,
                scheduler_seconds_total=total.scheduler_seconds,
                forward_seconds_total=total.forward_seconds,
                prefill_seconds_total=total.prefill_seconds,
                finished_total={str(k): v for k, v in self._finished.items()},
            )


_SUMMED = tuple(f.name for f in fields(Turn) if f.name not in ("copies", "finished"))
