"""The engine protocol: what the HTTP API, the command line, Triton and the Python API know of any engine.

A request is tokens and parameters in; a generation is an ordered stream of ``Delta`` out, ended by one ``Finish``.
Text, stop strings and incomplete UTF-8 are the engine's business, so every front end streams the same text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypedDict

from trtserve.engine_dir import Manifest
from trtserve.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]
Source = Literal["history", "prediction", "shared", "model"]
SOURCES: tuple[Source, ...] = ("history", "prediction", "shared", "model")


class EngineError(Exception):
    """A request that the engine could not serve. Base of those below; on its own, a failure inside the engine."""


class RequestError(EngineError):
    """The request itself is at fault: too long, a token outside the vocabulary. ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(EngineError):
    """No room for another waiting request. ``retry_after`` is a guess in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClosedError(EngineError):
    """The engine is draining or closed."""


@dataclass(frozen=True)
class Scope:
    """Whose text a request may share: the model and tokenizer are the engine's own, these are the request's."""

    tenant: str = ""
    adapter: str = ""
    salt: str = ""


@dataclass(frozen=True)
class GenerationRequest:
    """One sequence to generate. ``n`` choices of an API call are n of these."""

    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    scope: Scope = Scope()
    prediction: Sequence[int] = ()
    """Tokens the caller expects in the output (OpenAI's predicted outputs); a draft source, nothing more."""
    lookup: bool = True
    """False: this request takes no copies and leaves none in the shared cache."""
    request_id: str = ""


@dataclass(frozen=True)
class SourceStats:
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class GenerationStats:
    """One request's account, final in its ``Finish``. Times in seconds."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were already in the slot."""
    completion_tokens: int
    rounds: int
    """Verify forwards this sequence took part in."""
    sources: Mapping[Source, SourceStats]
    rounds_skipped: int = 0
    """Rounds in which the miss backoff held a copy back."""
    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0
    """From the first round's start to the last round's end."""
    window: int = 0
    """The window after the last round."""


@dataclass(frozen=True)
class TokenOut:
    """One emitted token. ``source`` is None for a token no draft proposed: the model's own choice."""

    token: int
    source: Source | None = None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """New output: whole UTF-8 characters only, no part of a stop string, so ``text`` may lag behind ``tokens``.

    ``spans`` cuts ``text`` into runs of one source, for display: their texts joined are ``text``. The end or stop token
    that finishes a generation is among ``tokens`` and is counted; it has no text, unless a stop token's was asked for.
    """

    text: str
    tokens: tuple[TokenOut, ...]
    spans: tuple[tuple[str, Source | None], ...] = ()


@dataclass(frozen=True)
class Finish:
    """The last event of every generation, also of a cancelled or failed one."""

    reason: FinishReason
    stats: GenerationStats
    stop: str | int | None = None
    """The stop string or the token that ended it, where one did."""
    error: str | None = None


@dataclass(frozen=True)
class Completion:
    """A whole generation."""

    text: str
    tokens: list[TokenOut]
    finish: Finish

    @classmethod
    def collect(cls, events: Iterable[Delta | Finish]) -> Completion:
        """Read a generation to its end. Raises EngineError where the events end without a ``Finish``."""
        texts: list[str] = []
        tokens: list[TokenOut] = []
        for event in events:
            if isinstance(event, Finish):
                return cls("".join(texts), tokens, event)
            texts.append(event.text)
            tokens += event.tokens
        raise EngineError("the generation ended without a finish")


class Generation(Protocol):
    """A running generation. Iterate it from one place, synchronously or asynchronously."""

    request: GenerationRequest

    def __iter__(self) -> Iterator[Delta | Finish]: ...

    def __aiter__(self) -> AsyncIterator[Delta | Finish]: ...

    def cancel(self) -> None:
        """Stop within a round; frees the slot. A ``Finish("cancelled")`` follows. Harmless when finished."""
        ...


class EngineMetrics(TypedDict):
    """A snapshot for ``/metrics``. Counters only grow; the rest are gauges. Keys are stable."""

    requests_running: int
    requests_waiting: int
    kv_tokens_used: int
    kv_tokens_capacity: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generation_tokens_total: int
    rounds_total: int
    round_sequences_total: int
    rounds_skipped_total: int
    draft_tokens_total: dict[str, int]
    accepted_tokens_total: dict[str, int]
    copies_total: dict[str, int]
    mean_window: float
    sequences_backing_off: int
    shared_cache_bytes: int
    shared_cache_budget_bytes: int
    shared_cache_scopes: int
    shared_cache_evictions_total: int
    shared_cache_saves_total: int
    shared_cache_save_failures_total: int
    shared_cache_save_seconds: float
    shared_cache_save_bytes: int
    scheduler_seconds_total: float
    forward_seconds_total: float
    prefill_seconds_total: float
    finished_total: dict[str, int]


class Engine(Protocol):
    """Any engine: the local scheduler over an executor, or TensorRT-LLM's."""

    manifest: Manifest

    @property
    def healthy(self) -> bool:
        """Whether requests can be expected to succeed."""
        ...

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request, from any thread. Raises RequestError, QueueFullError or EngineClosedError at once."""
        ...

    def metrics(self) -> EngineMetrics: ...

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for running ones.

        False when ``timeout`` seconds passed first; then what still runs is cancelled.
        """
        ...

    def close(self) -> None:
        """Cancel what runs and free everything. A second call does nothing."""
        ...
