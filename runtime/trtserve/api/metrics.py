"""Prometheus metrics, in a registry of the server's own.

Names are vLLM's with the prefix ``trtserve_`` for ``vllm:`` wherever both measure the same thing, so a dashboard
ports by replacing the prefix. What this project measures beyond that has names of the same style (docs/metrics.md).
Engine counters are read from ``Engine.metrics()`` at each scrape; latencies are observed where answers leave.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Protocol
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtserve.api.version import version
from trtserve.engine.protocol import SOURCES, Delta, Engine, EngineMetrics, Finish, FinishReason

_LATENCY = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_TOKENS_PER_ROUND = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 16.0, 32.0, 65.0)

log = logging.getLogger("trtserve.access")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

#: What monitoring asks for every few seconds.
_QUIET = frozenset({"/health", "/health/live", "/metrics"})

#: vLLM's name for a cancelled request.
REASON_LABELS: Mapping[FinishReason, str] = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}


class EngineCollector(Collector):
    """``Engine.metrics()`` as metric families, read when scraped."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model = model_name

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not touch the engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        m = self._engine.metrics()
        yield from self._requests(m)
        yield from self._drafts(m)
        yield from self._caches(m)
        yield from self._time(m)

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"trtserve_{name}", help, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(f"trtserve_{name}", help, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter_by(self, name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"trtserve_{name}", help, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, key], value)
        return family

    def _requests(self, m: EngineMetrics) -> Iterable[Metric]:
        yield self._gauge("num_requests_running", "Requests that hold a slot", m["requests_running"])
        yield self._gauge("num_requests_waiting", "Requests waiting for a slot", m["requests_waiting"])
        yield self._counter("prompt_tokens", "Prompt tokens of admitted requests", m["prompt_tokens_total"])
        yield self._counter("prompt_tokens_cached", "Prompt tokens not prefilled again", m["cached_tokens_total"])
        yield self._counter("generation_tokens", "Tokens emitted", m["generation_tokens_total"])
        finished = {label: float(m["finished_total"].get(reason, 0)) for reason, label in REASON_LABELS.items()}
        yield self._counter_by("request_success", "Finished requests by reason", "finished_reason", finished)

    def _drafts(self, m: EngineMetrics) -> Iterable[Metric]:
        for name, help, values in (
            ("spec_decode_num_drafts", "Copies and drafter chains put through a verify", m["copies_total"]),
            ("spec_decode_num_draft_tokens", "Drafts put through a verify", m["draft_tokens_total"]),
            ("spec_decode_num_accepted_tokens", "Drafts accepted", m["accepted_tokens_total"]),
        ):
            yield self._counter_by(name, help, "source", {source: values.get(source, 0) for source in SOURCES})
        yield self._counter("spec_decode_rounds", "Verify forwards", m["rounds_total"])
        yield self._counter(
            "spec_decode_round_sequences", "Sequences summed over verify forwards", m["round_sequences_total"]
        )
        yield self._counter(
            "spec_decode_rounds_skipped", "Rounds in which the miss backoff held a copy back", m["rounds_skipped_total"]
        )
        yield self._gauge("spec_decode_window_mean", "Mean window of running sequences, in drafts", m["mean_window"])
        yield self._gauge(
            "spec_decode_sequences_backing_off",
            "Running sequences that skip rounds after misses",
            m["sequences_backing_off"],
        )

    def _caches(self, m: EngineMetrics) -> Iterable[Metric]:
        capacity = m["kv_tokens_capacity"]
        usage = m["kv_tokens_used"] / capacity if capacity else 0.0
        yield self._gauge("kv_cache_usage_perc", "Share of KV cache positions in use; 1 is full", usage)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up for KV reuse", m["prompt_tokens_total"])
        yield self._counter("prefix_cache_hits", "Prompt tokens found for KV reuse", m["cached_tokens_total"])
        yield self._gauge("shared_cache_bytes", "Bytes the shared cache holds", m["shared_cache_bytes"])
        yield self._gauge(
            "shared_cache_budget_bytes", "Most bytes the shared cache may hold", m["shared_cache_budget_bytes"]
        )
        yield self._gauge("shared_cache_scopes", "Scopes in the shared cache", m["shared_cache_scopes"])
        yield self._counter(
            "shared_cache_evictions", "Scopes dropped to make room for another", m["shared_cache_evictions_total"]
        )
        yield self._counter("shared_cache_saves", "Times the shared cache was saved", m["shared_cache_saves_total"])
        yield self._counter(
            "shared_cache_save_failures",
            "Times the shared cache could not be saved",
            m["shared_cache_save_failures_total"],
        )
        yield self._gauge("shared_cache_save_seconds", "Time of the last save", m["shared_cache_save_seconds"])
        yield self._gauge("shared_cache_save_bytes", "Bytes of the last save's file", m["shared_cache_save_bytes"])

    def _time(self, m: EngineMetrics) -> Iterable[Metric]:
        yield self._counter("scheduler_seconds", "Time in scheduling, not in the model", m["scheduler_seconds_total"])
        yield self._counter("forward_seconds", "Verify forwards and chain drafting", m["forward_seconds_total"])
        yield self._counter("prefill_seconds", "Time in prefill forwards", m["prefill_seconds_total"])


class Observations(Protocol):
    """A histogram, as the code that measures sees it."""

    def observe(self, amount: float) -> None: ...


class RequestLatencies:
    """The histograms that ``RequestTimer`` fills. ``histogram(name, help, buckets)`` makes one."""

    def __init__(self, histogram: Callable[[str, str, tuple[float, ...]], Observations]) -> None:
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first token", _FIRST_TOKEN)
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Between successive tokens; a round's tokens share its time", _PER_TOKEN
        )
        self.per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "A request's decode time over its tokens after the first",
            _PER_TOKEN,
        )
        self.e2e = histogram("e2e_request_latency_seconds", "From arrival to the last token", _LATENCY)
        self.queue = histogram("request_queue_time_seconds", "Waiting for a slot", _LATENCY)
        self.prefill = histogram("request_prefill_time_seconds", "In prefill", _LATENCY)
        self.decode = histogram("request_decode_time_seconds", "In decode", _LATENCY)
        self.inference = histogram("request_inference_time_seconds", "In prefill and decode", _LATENCY)
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self.generation_tokens = histogram("request_generation_tokens", "Tokens emitted for a request", _TOKENS)
        self.tokens_per_round = histogram(
            "spec_decode_tokens_per_round", "A request's tokens over its rounds; 1 is plain decoding", _TOKENS_PER_ROUND
        )


class ServerMetrics(RequestLatencies):
    """The server's registry, and the instruments that request handling writes to."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, model_name))
        ProcessCollector(registry=self.registry)
        info = Gauge(
            "trtserve_build_info",
            "Always 1; the labels say what runs",
            ["version", "model_name", "target"],
            registry=self.registry,
        )
        info.labels(version(), model_name, engine.manifest.target).set(1)

        def histogram(name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"trtserve_{name}", help, ["model_name"], buckets=buckets, registry=self.registry)
            return made.labels(model_name)

        super().__init__(histogram)
        self.http_requests = Counter(
            "trtserve_http_requests",
            "HTTP requests by route and status; 499: the client left",
            ["method", "handler", "status"],
            registry=self.registry,
        )
        self.http_duration = Histogram(
            "trtserve_http_request_duration_seconds",
            "HTTP requests, to the last byte",
            ["method", "handler"],
            buckets=_LATENCY,
            registry=self.registry,
        )

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for a scrape, in the format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class RequestTimer:
    """Observes one API request's latencies, choice by choice, as its events pass."""

    def __init__(self, metrics: RequestLatencies) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._last: dict[int, float] = {}

    def observe(self, index: int, event: Delta | Finish) -> None:
        now = time.perf_counter()
        m = self._metrics
        if isinstance(event, Delta):
            if not event.tokens:
                return
            if index not in self._last:
                m.first_token.observe(now - self._start)
            else:
                gap = (now - self._last[index]) / len(event.tokens)
                for _ in event.tokens:
                    m.inter_token.observe(gap)
            self._last[index] = now
            return
        stats = event.stats
        m.e2e.observe(now - self._start)
        m.queue.observe(stats.queue_time)
        m.prefill.observe(stats.prefill_time)
        m.decode.observe(stats.decode_time)
        m.inference.observe(stats.prefill_time + stats.decode_time)
        m.prompt_tokens.observe(stats.prompt_tokens)
        m.generation_tokens.observe(stats.completion_tokens)
        if stats.completion_tokens > 1:
            m.per_output_token.observe(stats.decode_time / (stats.completion_tokens - 1))
        if stats.rounds:
            m.tokens_per_round.observe(stats.completion_tokens / stats.rounds)


class HttpMetricsMiddleware:
    """Counts, times and logs HTTP requests. Plain ASGI: it neither buffers streams nor hides a client's leaving.

    The log has method, path, status and time. Query, headers and body never reach it.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            handler, seconds = _handler(scope), time.perf_counter() - start
            # A client may invent methods as well as paths, and neither must each become a series.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.http_requests.labels(method, handler, str(status)).inc()
            self._metrics.http_duration.labels(method, handler).observe(seconds)
            level = logging.DEBUG if handler in _QUIET and status == 200 else logging.INFO
            log.log(level, "%s %s %d %.0f ms", scope["method"][:20], quote(scope["path"])[:200], status, 1000 * seconds)


def _handler(scope: MutableMapping[str, object]) -> str:
    """The route's template: paths of unknown routes must not each become a series."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))
