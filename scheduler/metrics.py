"""What the scheduler counts.

Knows the core's outputs and tables; changes nothing.
"""

from collections import Counter

from scheduler.core.breaker import Breaker, State
from scheduler.core.outputs import Output, Placed, Rejected
from scheduler.core.state import SchedulerCore
from services.chassis.metrics import Metrics
from services.domain.bands import Bands
from services.domain.generation import RequestClass

_LEVELS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class SchedulerMetrics:
    """Gauges are set from the live tables; counters follow the outputs."""

    def __init__(self, metrics: Metrics, bands: Bands) -> None:
        self._bands = bands
        self._requests = metrics.gauge(
            "quire_requests", "Requests in the queue", ("state", "band", "request_class")
        )
        self._credits = metrics.gauge(
            "quire_scheduler_credits", "Placements a worker would take now", ("worker",)
        )
        self._placed = metrics.counter(
            "quire_placements_total", "Requests placed on a worker", ("worker", "miss_reason")
        )
        self._rejected = metrics.counter("quire_rejections_total", "Requests refused", ("reason",))
        self._queue_time = metrics.histogram(
            "quire_queue_seconds", "Time from arrival to placement", ("band", "request_class")
        )
        self._steps = metrics.gauge(
            "quire_degradation_step",
            "How far a band has degraded for all of its tenants, 0 to 6",
            ("model", "band"),
        )
        self._tenants = metrics.gauge(
            "quire_degraded_tenants",
            "Tenants that have degraded by themselves, by their step",
            ("model", "band", "step"),
        )
        self._breakers = metrics.gauge(
            "quire_breaker_state", "A worker's breaker: 0 closed, 1 half open, 2 open", ("worker",)
        )
        self._opened = metrics.counter(
            "quire_breaker_openings_total", "Times that a worker's breaker opened", ("worker", "reason")
        )
        self._quarantined = metrics.gauge(
            "quire_quarantined_prompts", "Prompts that are kept from workers because workers died with them"
        )
        self._openings: dict[str, int] = {}
        self._workers_shown: set[str] = set()
        self._degraded: set[tuple[str, str]] = set()
        self._degraded_tenants: set[tuple[str, str, str]] = set()

    def handled(self, output: Output) -> None:
        """Count one output."""
        if isinstance(output, Placed):
            acquire = output.acquire
            self._placed.add(1, output.worker, output.miss_reason.value)
            self._queue_time.observe(
                output.waited_s, self._bands.name(acquire.band), acquire.request_class.name.lower()
            )
        elif isinstance(output, Rejected):
            self._rejected.add(1, output.error.reason)

    def show(self, core: SchedulerCore, now: float) -> None:
        """Set the gauges to what is true now."""
        waiting = {(band, kind): 0 for band in self._bands for kind in RequestClass}
        for (band, kind, _), count in core.room.sizes.items():
            waiting[band, kind] += count
        for (band, kind), count in waiting.items():
            self._requests.set(count, "waiting", self._bands.name(band), kind.name.lower())
        steps = {
            (model.name, self._bands.name(band)): step
            for model in core.fleet.models()
            for band, step in model.steps.items()
        }
        for labels in self._degraded - set(steps):
            self._steps.set(0, *labels)
        for labels, step in steps.items():
            self._steps.set(step, *labels)
        self._degraded = set(steps)
        self._show_tenants(core)
        for name in self._workers_shown - set(core.fleet.workers):
            self._credits.set(0, name)
            self._breakers.set(0, name)
        self._workers_shown = set(core.fleet.workers)
        for name, worker in core.fleet.workers.items():
            self._credits.set(worker.free_credits, name)
            breaker = core.faults.breakers.get(name)
            if breaker is not None:
                self._breakers.set(_LEVELS[breaker.state], name)
                self._count_openings(name, breaker)
        self._quarantined.set(len(core.faults.quarantine.entries(now)))

    def _show_tenants(self, core: SchedulerCore) -> None:
        """Count the tenants on each step; none of them is named."""
        counts = Counter(
            (one.model, self._bands.name(one.band), one.step.name.lower()) for one in core.ladder.tenants()
        )
        for labels in self._degraded_tenants | set(counts):
            self._tenants.set(counts[labels], *labels)
        self._degraded_tenants = set(counts)

    def _count_openings(self, name: str, breaker: Breaker) -> None:
        new = breaker.num_opened - self._openings.get(name, 0)
        if new > 0 and breaker.reason is not None:
            self._opened.add(new, name, breaker.reason.value)
        self._openings[name] = breaker.num_opened
