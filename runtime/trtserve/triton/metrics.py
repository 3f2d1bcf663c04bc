"""Engine metrics and request latencies on Triton's metrics page, under the names that ``trtserve`` has at /metrics.

Two threads that touch Triton's metrics at once crash the server, so one thread of this module is the only one that
does: it takes observations from a queue and copies the engine's counters every ``PERIOD`` seconds.

An observation is a message to the server's process. One per token was measured to cost 70 microseconds of CPU time on
both sides together, and a thread that falls behind never catches up. So the histogram of inter-token latency is kept
here and copied with the counters, bucket by bucket: the series are those of a histogram, Triton calls them gauges.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Protocol

from prometheus_client import Histogram

from trtserve.api.metrics import EngineCollector, Observations, RequestLatencies, RequestTimer
from trtserve.api.version import version
from trtserve.engine.protocol import Engine

log = logging.getLogger("trtserve.triton")

PERIOD = 1.0
#: Histograms that every token is observed in.
PER_TOKEN = frozenset({"inter_token_latency_seconds"})
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


class _Waiting:
    """What waits for the thread that may touch metrics; None: there is no more. Dropped once that thread is gone."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Metric, float] | None] = SimpleQueue()
        self._dropped = False

    def put(self, observation: tuple[Metric, float] | None) -> None:
        if not self._dropped:
            self._queue.put(observation)

    def get(self, timeout: float) -> tuple[Metric, float] | None:
        """Raises ``queue.Empty``."""
        return self._queue.get(timeout=timeout)

    def drop(self) -> None:
        """From the thread that takes them: none is taken from here on."""
        self._dropped = True
        with suppress(Empty):
            while True:
                self._queue.get_nowait()


class _Queued:
    """A histogram whose observations wait for the thread that may make them."""

    def __init__(self, waiting: _Waiting, metric: Metric) -> None:
        self._waiting = waiting
        self._metric = metric

    def observe(self, amount: float) -> None:
        self._waiting.put((self._metric, amount))


class TritonMetrics:
    """Shows one engine's metrics to Triton until closed."""

    def __init__(self, families: MetricFamilies, engine: Engine, model_name: str, instance: str) -> None:
        self._families = families
        self._collector = EngineCollector(engine, model_name)
        self._labels = {"model_name": model_name, INSTANCE_LABEL: instance}
        self._waiting = _Waiting()
        self._known: dict[str, Any] = {}
        self._engine_metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Metric] = {}
        self._shown: dict[Metric, float] = {}
        self._kept: list[Histogram] = []
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
        self._waiting.put(None)
        self._thread.join()
        self._engine_metrics.clear()
        self._shown.clear()
        del self._info, self._latencies, self._waiting
        gc.collect()
        self._known.clear()
        gc.collect()

    def _family(self, name: str, description: str, kind: Any) -> Any:
        if name not in self._known:
            self._known[name] = self._families(name=name, description=description, kind=kind)
        return self._known[name]

    def _histogram(self, name: str, description: str, buckets: Sequence[float]) -> Observations:
        if name in PER_TOKEN:
            kept = Histogram(f"trtserve_{name}", description, buckets=buckets, registry=None)
            self._kept.append(kept)
            return kept
        family = self._family(f"trtserve_{name}", description, self._families.HISTOGRAM)
        return _Queued(self._waiting, family.Metric(labels=self._labels, buckets=[float(b) for b in buckets]))

    def _run(self) -> None:
        try:
            self._info.set(1)
            due = monotonic()
            while True:
                # The counters have their turn however many observations wait.
                if (wait := due - monotonic()) <= 0:
                    self._copy()
                    due = monotonic() + PERIOD
                    continue
                try:
                    observation = self._waiting.get(wait)
                except Empty:
                    continue
                if observation is None:
                    return
                metric, value = observation
                metric.observe(value)
        except Exception:
            # Metrics are not worth a failing model.
            log.exception("metrics stopped")
            self._waiting.drop()

    def _copy(self) -> None:
        """Counters by what they grew, everything else as it is. What did not change costs no message."""
        for family in chain(self._collector.collect(), *(histogram.collect() for histogram in self._kept)):
            counter = family.type == "counter"
            kind = self._families.COUNTER if counter else self._families.GAUGE
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                metric = self._metric(sample.name, sample.labels, family.documentation, kind)
                shown = self._shown.get(metric, 0.0)
                if sample.value != shown:
                    if counter:
                        metric.increment(max(sample.value - shown, 0.0))
                    else:
                        metric.set(sample.value)
                    self._shown[metric] = sample.value

    def _metric(self, name: str, labels: Mapping[str, str], description: str, kind: Any) -> Metric:
        key = (name, tuple(sorted(labels.items())))
        if key not in self._engine_metrics:
            family = self._family(name, description, kind)
            self._engine_metrics[key] = family.Metric(labels={**labels, **self._labels})
        return self._engine_metrics[key]
