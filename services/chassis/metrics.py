"""Prometheus metrics whose labels are bounded and whose recording cannot fail a request.

Knows names, labels and buckets; does not know what is counted. A negative increment is clamped to nothing and
counted in `quire_metric_faults_total` as a bug to look for.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from services.chassis.ticks import until_tick

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_LABEL_SETS = 256
"""Label combinations one metric may have; further ones are counted under `other`."""

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Buckets for times a person waits."""
SHORT_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Buckets for steps, tokenising, serialising, loop lag."""
TOKENS = tuple(float(2**n) for n in range(18))
"""Buckets for prompt and output lengths."""
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Buckets for batch sizes."""


class Metrics:
    """One process's registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        if registry is None:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
        self._refreshers: list[Callable[[], None]] = []
        self._faults = PrometheusCounter(
            "quire_metric_faults",
            "Recordings refused as impossible, a bug each",
            ["metric"],
            registry=self.registry,
        )

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> "Counter":
        """Create a counter; `name` ends in `_total`."""
        return Counter(PrometheusCounter(name, help_text, labels, registry=self.registry), name, labels, self)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> "Gauge":
        return Gauge(PrometheusGauge(name, help_text, labels, registry=self.registry), name, labels, self)

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> "Histogram":
        inner = PrometheusHistogram(name, help_text, labels, buckets=buckets, registry=self.registry)
        return Histogram(inner, name, labels, self)

    def fault(self, name: str) -> None:
        """Count one recording that made no sense."""
        self._faults.labels(name).inc()

    def before_render(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` before each exposition: it sets gauges that nobody needs in between."""
        self._refreshers.append(refresh)

    def render(self) -> bytes:
        """Return the exposition text."""
        for refresh in self._refreshers:
            refresh()
        return generate_latest(self.registry)


class _Labelled:
    def __init__(self, inner: Any, name: str, labels: Sequence[str], metrics: Metrics) -> None:
        self._inner = inner
        self._name = name
        self._num_labels = len(labels)
        self._metrics = metrics
        self._children: dict[tuple[str, ...], Any] = {}

    def _child(self, labels: tuple[str, ...]) -> Any | None:
        child = self._children.get(labels)
        if child is not None:
            return child
        if len(labels) != self._num_labels:
            self._metrics.fault(self._name)
            return None
        if not labels:
            child = self._inner
        elif len(self._children) >= MAX_LABEL_SETS:
            return self._inner.labels(*("other",) * self._num_labels)
        else:
            child = self._inner.labels(*labels)
        self._children[labels] = child
        return child


class Counter(_Labelled):
    """Only ever grows."""

    def add(self, amount: float = 1, *labels: str) -> None:
        """Add `amount`; label values by position."""
        if not amount >= 0:
            self._metrics.fault(self._name)
        elif (child := self._child(labels)) is not None:
            child.inc(amount)


class Gauge(_Labelled):
    """A level, set from the live table and never counted up and down."""

    def set(self, value: float, *labels: str) -> None:
        if (child := self._child(labels)) is not None:
            child.set(value)


class Histogram(_Labelled):
    """A distribution over fixed buckets."""

    def observe(self, value: float, *labels: str) -> None:
        if not value >= 0:
            self._metrics.fault(self._name)
        elif (child := self._child(labels)) is not None:
            child.observe(value)


async def sample_loop_lag(metrics: Metrics, period_s: float = 1.0) -> None:
    """Observe for ever how late the event loop wakes up a sleeper."""
    lag = metrics.histogram(
        "quire_event_loop_lag_seconds", "How late the event loop ran a timer", buckets=SHORT_SECONDS
    )
    while True:
        now = time.monotonic()
        wait_s = until_tick(now, period_s)
        await asyncio.sleep(wait_s)
        lag.observe(max(0.0, time.monotonic() - now - wait_s))
