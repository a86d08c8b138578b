"""What the gateway shows of itself: metrics, and one log line per finished request.

Knows names and buckets. Records per request, never per token, and never text.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from services.chassis.metrics import SHORT_SECONDS, TOKENS, Metrics
from services.domain.degradation import Degraded
from services.domain.generation import Usage

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The numbers of one finished request."""

    request_id: str
    tenant: str
    model: str
    reason: str
    """How it ended: ok, cancelled, or an error's reason."""
    usage: Usage
    cost_nanos: int | None
    """Of what was billed; None without prices."""
    duration_s: float
    ttft_s: float | None
    tpot_s: float | None
    queue_s: float
    attempts: int
    preemptions: int | None
    peak_pages: int | None
    """As the worker's last word has them; None where no worker had the request, or its worker was lost."""
    worker: str
    trace_id: str | None
    degraded: tuple[Degraded, ...] = ()


class GatewayMetrics:
    """The gateway's metrics in one registry."""

    def __init__(self, metrics: Metrics) -> None:
        make = metrics.histogram
        self._ttft = make(
            "gen_ai_server_time_to_first_token_seconds",
            "From arrival at the edge to the first token",
            ("model",),
        )
        self._tpot = make(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time per output token after the first",
            ("model",),
            buckets=SHORT_SECONDS,
        )
        self._duration = make(
            "gen_ai_server_request_duration_seconds", "From arrival to the end", ("model", "reason")
        )
        self._queue = make("quire_queue_seconds", "From asking for a place to prefill", ("model",))
        self._prompt = make("quire_prompt_tokens", "Prompt lengths", ("model",), buckets=TOKENS)
        self._output = make(
            "quire_output_tokens", "Output lengths over all choices", ("model",), buckets=TOKENS
        )
        self._tokenize = make("quire_tokenize_seconds", "Time to tokenise one prompt", buckets=SHORT_SECONDS)
        self._serialize = make(
            "quire_serialize_seconds",
            "Time to build and hand over one request's messages",
            buckets=SHORT_SECONDS,
        )
        self._finished = metrics.counter(
            "quire_requests_finished_total", "Requests by how they ended", ("reason",)
        )
        self._degraded = metrics.counter(
            "quire_degraded_total",
            "Requests that got less than they asked for; numbers as the power of two that holds them",
            ("step", "asked", "served"),
        )
        self._retries = metrics.counter(
            "quire_retries_total",
            "Wishes for a further attempt, by whether the budget had one left",
            ("outcome",),
        )
        self._requests = metrics.gauge("quire_requests", "Live requests by state", ("state",))
        self._oldest = metrics.gauge(
            "quire_oldest_request_seconds", "Age of the oldest live request by state", ("state",)
        )
        self._pending = metrics.gauge(
            "quire_settlements_pending", "Settlements that the store does not have yet"
        )
        self._outage_grants = metrics.gauge(
            "quire_outage_grants", "Requests admitted without the store that use up an outage allowance"
        )
        self._lost = metrics.counter(
            "quire_settlements_lost_total", "Settlements given up in an outage: more than are kept"
        )

    def tokenized(self, seconds: float) -> None:
        self._tokenize.observe(seconds)

    def settlement_lost(self) -> None:
        """Once for every settlement that is given up."""
        self._lost.add(1)

    def wished_again(self, granted: bool) -> None:
        """Once for every attempt that failed and may be followed by another one."""
        self._retries.add(1, "made" if granted else "over_budget")

    def serialized(self, seconds: float) -> None:
        self._serialize.observe(seconds)

    def first_token(self, model: str, ttft_s: float) -> None:
        """Once per request, when its first token is delivered."""
        self._ttft.observe(ttft_s, model)

    def levels(self, live: Mapping[str, tuple[int, float]], *, num_pending: int, num_granted: int) -> None:
        """Set the gauges; `live` is of the live table: state -> (requests, age of the oldest)."""
        for state, (num, age_s) in live.items():
            self._requests.set(num, state)
            self._oldest.set(age_s, state)
        self._pending.set(num_pending)
        self._outage_grants.set(num_granted)

    def finished(self, outcome: Outcome) -> None:
        """Once per request: count it."""
        model = outcome.model
        self._finished.add(1, outcome.reason)
        for one in outcome.degraded:
            self._degraded.add(1, one.step.name.lower(), _label(one.asked), _label(one.served))
        self._duration.observe(outcome.duration_s, model, outcome.reason)
        if outcome.usage.prompt_tokens:
            self._prompt.observe(outcome.usage.prompt_tokens, model)
        if outcome.ttft_s is not None:
            self._output.observe(outcome.usage.output_tokens, model)
            self._queue.observe(outcome.queue_s, model)
        if outcome.tpot_s is not None:
            self._tpot.observe(outcome.tpot_s, model)


def tell_finished(outcome: Outcome) -> None:
    """Write a request's one line, once its worker has said its last word."""
    _log.info(
        "request_finished",
        request_id=outcome.request_id,
        tenant=outcome.tenant,
        model=outcome.model,
        reason=outcome.reason,
        prompt_tokens=outcome.usage.prompt_tokens,
        cached_tokens=outcome.usage.cached_tokens,
        output_tokens=outcome.usage.output_tokens,
        cost_nanos=outcome.cost_nanos,
        peak_pages=outcome.peak_pages,
        preemptions=outcome.preemptions,
        attempts=outcome.attempts,
        worker=outcome.worker,
        queue_ms=round(outcome.queue_s * 1000, 1),
        ttft_ms=None if outcome.ttft_s is None else round(outcome.ttft_s * 1000, 1),
        duration_ms=round(outcome.duration_s * 1000, 1),
        trace_id=outcome.trace_id,
        degraded=[str(one) for one in outcome.degraded],
    )


def _label(amount: str) -> str:
    """Return an amount as a label of few values: a number as the least power of two that is not below it.

    Worked number: 0 is 0, 1 is 1, 200 is 256. A model's name is itself: there are few.
    """
    if not amount.isdecimal():
        return amount
    number = int(amount)
    return str(1 << (number - 1).bit_length()) if number else "0"
