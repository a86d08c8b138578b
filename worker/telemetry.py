"""Metrics, spans and log lines of a worker: per step a few counters, per request one span and one line.

Knows what is worth watching; never holds a prompt or an output, and cannot fail a step or a request.
"""

import time
from dataclasses import dataclass

import structlog
from opentelemetry.trace import Span, StatusCode

from services.chassis.metrics import COUNTS, SECONDS, SHORT_SECONDS, TOKENS, Metrics
from services.chassis.telemetry import start_span, trace_id
from services.domain.generation import FinishReason
from services.domain.ids import RequestKey
from worker.async_engine import LiveRequest
from worker.engine.outputs import ChoiceEnded, Ended, Refused, StepOutputs, StepStats
from worker.executors.base import ModelProfile

_log = structlog.get_logger()


class StepMetrics:
    """Counts steps. Gauges are the last step's own numbers, set when somebody asks, and never counted up."""

    def __init__(self, metrics: Metrics) -> None:
        self._pages = metrics.gauge("quire_kv_pages", "KV pages by state", ["state"])
        self._transitions = metrics.counter(
            "quire_kv_transitions_total", "KV pages that entered a state", ["to"]
        )
        self._failures = metrics.counter(
            "quire_kv_allocation_failures_total", "Times a sequence could not get pages"
        )
        self._requests = metrics.gauge("quire_requests", "Sequences without a seat, and with one", ["state"])
        self._sequences = metrics.gauge("quire_sequences", "Live sequences by state", ["state"])
        self._oldest = metrics.gauge("quire_oldest_waiting_seconds", "Age of the oldest waiting sequence")
        self._prefix = metrics.counter(
            "quire_prefix_tokens_total", "Prompt tokens at first starts: cached or not", ["result"]
        )
        self._tokens = metrics.counter("quire_step_tokens_total", "Tokens computed, by phase", ["phase"])
        self._preemptions = metrics.counter("quire_preemptions_total", "Sequences that lost their pages")
        self._unknown_cancels = metrics.counter(
            "quire_unknown_cancels_total", "Cancels of requests that were over"
        )
        self._batch = metrics.histogram("quire_batch_size", "Sequences in a step", buckets=COUNTS)
        self._step = metrics.histogram(
            "quire_step_seconds", "Time of a step in the executor", ["phase"], buckets=SHORT_SECONDS
        )
        self._finished = metrics.counter(
            "quire_requests_finished_total", "Choices that ended well, and requests that did not", ["reason"]
        )
        self._seen_states: set[str] = set()
        self._last: StepStats | None = None
        metrics.before_render(self._set_gauges)
        # The series that dashboards ask for exist from the start.
        for reason in FinishReason:
            self._finished.add(0, reason)
        for result in ("hit", "miss"):
            self._prefix.add(0, result)

    def on_step(self, outputs: StepOutputs) -> None:
        """Take in one step."""
        self._last = stats = outputs.stats
        for to, pages in stats.transitions.items():
            self._transitions.add(pages, to)
        for result, tokens in stats.prefix_tokens.items():
            self._prefix.add(tokens, result)
        for counter, amount in (
            (self._failures, stats.allocation_failures),
            (self._preemptions, stats.preemptions),
            (self._unknown_cancels, stats.unknown_cancels),
        ):
            if amount:
                counter.add(amount)
        if stats.num_rows:
            self._batch.observe(stats.num_rows)
            self._step.observe(stats.step_s, phase_of(stats.num_prefill_tokens, stats.num_decode_tokens))
            self._tokens.add(stats.num_prefill_tokens, "prefill")
            self._tokens.add(stats.num_decode_tokens, "decode")
        if outputs.events:
            self._count_ends(outputs)

    def _set_gauges(self) -> None:
        stats = self._last
        if stats is None:
            return
        self._pages.set(stats.free_pages, "free")
        self._pages.set(stats.cached_pages, "cached")
        self._pages.set(stats.held_pages, "held")
        self._requests.set(stats.waiting, "waiting")
        self._requests.set(stats.running, "running")
        self._seen_states.update(stats.states)
        for state in self._seen_states:
            self._sequences.set(stats.states.get(state, 0), state)
        self._oldest.set(stats.oldest_waiting_s)

    def _count_ends(self, outputs: StepOutputs) -> None:
        for event in outputs.events:
            if isinstance(event, ChoiceEnded):
                self._finished.add(1, event.reason)
            elif isinstance(event, Ended) and event.cancelled:
                self._finished.add(1, "cancelled")
            elif isinstance(event, Ended | Refused) and event.error is not None:
                self._finished.add(1, event.error.reason)


def tell_kernels(metrics: Metrics, profile: ModelProfile) -> None:
    """Say once what each kind of layer really runs on, and whether an answer's bits are a request's own.

    Quantised weights served as floats are seen here, and kernels whose tiles nobody measured on this chip.
    """
    metrics.gauge(
        "quire_batch_invariant",
        "1: a row's bits are the same in any batch; 0: not (any GPU today: docs/gpu.md)",
    ).set(float(profile.is_batch_invariant))
    gauge = metrics.gauge(
        "quire_kernel_info",
        "Operations of the model, by layers, the kernel they run, and where its tiles come from",
        ["layer_kind", "kernel", "tiles"],
    )
    for use in profile.kernels:
        gauge.set(use.count, use.layer_kind, use.kernel, use.tiles)


@dataclass(frozen=True, slots=True)
class _Open:
    span: Span
    trace_id: str | None
    num_prompt_tokens: int
    submitted_ns: int


class RequestTelemetry:
    """One span and one log line per request; histograms of lengths and times. A `RequestObserver`."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._model = model
        self._open: dict[RequestKey, _Open] = {}
        self._prompt = metrics.histogram("quire_prompt_tokens", "Tokens of a prompt", buckets=TOKENS)
        self._output = metrics.histogram("quire_output_tokens", "Tokens of an answer", buckets=TOKENS)
        self._queue = metrics.histogram(
            "quire_worker_queue_seconds", "Submit to the start of prefill", buckets=SECONDS
        )
        self._first_token = metrics.histogram(
            "gen_ai_server_time_to_first_token_seconds", "Submit to first token", ["model"], buckets=SECONDS
        )
        self._per_token = metrics.histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time of the tokens after the first",
            ["model"],
            buckets=SHORT_SECONDS,
        )
        self._duration = metrics.histogram(
            "gen_ai_server_request_duration_seconds", "Submit to end", ["model"], buckets=SECONDS
        )

    def submitted(self, request: LiveRequest, num_prompt_tokens: int, traceparent: str) -> None:
        """Begin the request's span as a child of the gateway's."""
        attributes: dict[str, str | int | float | bool] = {
            "quire.request_id": request.key.request_id,
            "quire.attempt": request.key.attempt,
            "quire.tenant": request.tenant,
            "gen_ai.request.model": self._model,
            "gen_ai.usage.input_tokens": num_prompt_tokens,
        }
        span = start_span("worker.request", traceparent or None, **attributes)
        self._open[request.key] = _Open(span, trace_id(traceparent), num_prompt_tokens, time.time_ns())

    def preempted(self, request: LiveRequest) -> None:
        """Mark a preemption in the span."""
        known = self._open.get(request.key)
        if known is not None:
            known.span.add_event("preempted")

    def ended(self, request: LiveRequest, end: Ended | Refused) -> None:
        """End the span, write the line, observe lengths and times."""
        known = self._open.pop(request.key, None)
        if known is None:
            return
        reason = reason_of(end)
        span = known.span
        span.set_attribute("quire.reason", reason)
        if end.error is not None:
            span.set_status(StatusCode.ERROR, reason)
        if isinstance(end, Ended):
            self._observe(end, known)
        span.add_event("finished")
        span.end()
        _log.info("request_finished", **_line(request, end, known, reason))

    def _observe(self, end: Ended, known: _Open) -> None:
        num_output = end.usage.output_tokens
        known.span.set_attribute("gen_ai.usage.output_tokens", num_output)
        self._prompt.observe(known.num_prompt_tokens)
        self._output.observe(num_output)
        self._queue.observe(end.queue_s)
        first_token_s = end.queue_s + end.prefill_s
        self._duration.observe(first_token_s + end.decode_s, self._model)
        if num_output:
            known.span.add_event("first_token", timestamp=known.submitted_ns + int(first_token_s * 1e9))
            self._first_token.observe(first_token_s, self._model)
        if num_output > 1:
            self._per_token.observe(end.decode_s / (num_output - 1), self._model)


def reason_of(end: Ended | Refused) -> str:
    """Name how a request ended: `ok`, `cancelled`, or the error's stable reason."""
    if end.error is not None:
        return end.error.reason
    return "cancelled" if isinstance(end, Ended) and end.cancelled else "ok"


def phase_of(num_prefill_tokens: int, num_decode_tokens: int) -> str:
    """Name what a step did: `prefill`, `decode` or `mixed`."""
    if num_prefill_tokens and num_decode_tokens:
        return "mixed"
    return "prefill" if num_prefill_tokens else "decode"


def _line(
    request: LiveRequest, end: Ended | Refused, known: _Open, reason: str
) -> dict[str, str | int | float | None]:
    line: dict[str, str | int | float | None] = {
        "request_id": request.key.request_id,
        "attempt": request.key.attempt,
        "tenant": request.tenant,
        "trace_id": known.trace_id,
        "reason": reason,
        "prompt_tokens": known.num_prompt_tokens,
    }
    if isinstance(end, Ended):
        line |= {
            "cached_tokens": end.usage.cached_tokens,
            "output_tokens": end.usage.output_tokens,
            "peak_pages": end.peak_pages,
            "preemptions": end.preemptions,
            "queue_ms": round(end.queue_s * 1000, 1),
            "prefill_ms": round(end.prefill_s * 1000, 1),
            "decode_ms": round(end.decode_s * 1000, 1),
        }
    return line
