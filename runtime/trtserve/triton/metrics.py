"""Engine metrics and request latencies on Triton's metrics page, under the names that ``trtserve`` has at /metrics.

Two threads that touch Triton's metrics at once crash the server, so one thread of this module is the only one that
does: it takes observations from a queue and copies the engine's counters every ``PERIOD`` seconds. An observation is a
message to the server's process, so there is none per token: of the server's histograms, that of inter-token latency is
missing here.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Protocol

from trtserve.api.metrics import EngineCollector, RequestLatencies, RequestTimer
from trtserve.api.version import version
from trtserve.engine.protocol import Engine

log = logging.getLogger("trtserve.triton")

PERIOD = 1.0
#: The label that tells a model's instances apart. Triton's own ``instance`` would clash with Prometheus's.
INSTANCE_LABEL = "model_instance"


class Metric(Protocol):
    """``pb_utils.Metric``."""

    def increment(self, value: float, /) -> None: ...

    def set(self, value: float, /) -> None: ...

    def observe(self, value: float, /) -> None: ...


class MetricFamilies(Protocol):
    """``pb_utils.MetricFamily``, the class."""

    COUNTER: Any
    GAUGE: Any
    HISTOGRAM: Any

    def __call__(self, *, name: str, description: str, kind: Any) -> Any: ...


class _Queued:
    """A histogram whose observations wait for the thread that may make them."""

    def __init__(self, queue: SimpleQueue[tuple[Metric, float] | None], metric: Metric) -> None:
        self._queue = queue
        self._metric = metric

    def observe(self, amount: float) -> None:
        self._queue.put((self._metric, amount))


class _Unobserved:
    def observe(self, amount: float) -> None:
        pass


class TritonMetrics:
    """Shows one engine's metrics to Triton until closed."""

    def __init__(self, families: MetricFamilies, engine: Engine, model_name: str, instance: str) -> None:
        self._families = families
        self._collector = EngineCollector(engine, model_name)
        self._labels = {"model_name": model_name, INSTANCE_LABEL: instance}
        self._queue: SimpleQueue[tuple[Metric, float] | None] = SimpleQueue()
        self._known: dict[str, Any] = {}
        self._engine_metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Metric] = {}
        self._counted: dict[Metric, float] = {}
        self._latencies = RequestLatencies(self._histogram)
        info = {"version": version(), "target": engine.manifest.target}
        family = self._family("trtserve_build_info", "Always 1; the labels say what runs", families.GAUGE)
        self._info: Metric = family.Metric(labels={**self._labels, **info})
        self._thread = threading.Thread(target=self._run, name="trtserve-metrics", daemon=True)
        self._thread.start()

    def start(self) -> RequestTimer:
        """Observes one request's latencies."""
        return RequestTimer(self._latencies)

    def close(self) -> None:
        """Stop, and let go of every metric, then of their families: the other order makes Triton use freed ones."""
        self._queue.put(None)
        self._thread.join()
        self._engine_metrics.clear()
        self._counted.clear()
        del self._info, self._latencies, self._queue
        gc.collect()
        self._known.clear()
        gc.collect()

    def _family(self, name: str, description: str, kind: Any) -> Any:
        if name not in self._known:
            self._known[name] = self._families(name=name, description=description, kind=kind)
        return self._known[name]

    def _histogram(self, name: str, description: str, buckets: Sequence[float]) -> _Queued | _Unobserved:
        if name == "inter_token_latency_seconds":
            return _Unobserved()
        family = self._family(f"trtserve_{name}", description, self._families.HISTOGRAM)
        return _Queued(self._queue, family.Metric(labels=self._labels, buckets=[float(b) for b in buckets]))

    def _run(self) -> None:
        try:
            self._info.set(1)
            due = monotonic()
            while True:
                try:
                    item = self._queue.get(timeout=max(due - monotonic(), 0))
                except Empty:
                    self._copy()
                    due = monotonic() + PERIOD
                    continue
                if item is None:
                    return
                metric, value = item
                metric.observe(value)
        except Exception:
            # Metrics are not worth a failing model. Observations are dropped from here on.
            log.exception("metrics stopped")

    def _copy(self) -> None:
        """Counters by what they grew, gauges as they are."""
        for family in self._collector.collect():
            counter = family.type == "counter"
            kind = self._families.COUNTER if counter else self._families.GAUGE
            for sample in family.samples:
                metric = self._metric(sample.name, sample.labels, family.documentation, kind)
                if counter:
                    grown = sample.value - self._counted.get(metric, 0.0)
                    if grown > 0:
                        metric.increment(grown)
                    self._counted[metric] = sample.value
                else:
                    metric.set(sample.value)

    def _metric(self, name: str, labels: Mapping[str, str], description: str, kind: Any) -> Metric:
        key = (name, tuple(sorted(labels.items())))
        if key not in self._engine_metrics:
            family = self._family(name, description, kind)
            self._engine_metrics[key] = family.Metric(labels={**labels, **self._labels})
        return self._engine_metrics[key]
