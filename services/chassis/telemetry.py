"""Tracing: spans named `service.verb`, W3C trace context between processes, export that cannot fail a call.

Knows spans and where they go; does not know which hop is which. Cheap when off: no span is recorded, but a
caller's trace context still passes through.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags


def configure_tracing(service: str, exporter: str = "none") -> Callable[[], None]:
    """Say where this process's spans go; return what flushes and ends the export.

    Args:
        exporter: `none`; `otlp` (endpoint from the standard OTEL_ variables); or `file:PATH`, JSON lines.

    Raises:
        ConfigError: No such exporter, or its file cannot be written.
    """
    if exporter == "none":
        return lambda: None
    from services.chassis.span_export import create_provider  # The SDK costs 10 MB: only when it is used.

    provider = create_provider(service, exporter)
    trace.set_tracer_provider(provider)
    return provider.shutdown


def start_span(name: str, parent: str | None = None, **attributes: str | int | float | bool) -> Span:
    """Start a span that the caller ends; `parent` is a traceparent, None takes the current span."""
    context = None if not parent else extract(parent)
    return trace.get_tracer("quire").start_span(name, context, attributes=attributes)


@contextmanager
def span(name: str, parent: str | None = None, **attributes: str | int | float | bool) -> Iterator[Span]:
    """Run the block inside a span; an exception marks it failed by type, without its text."""
    started = start_span(name, parent, **attributes)
    with trace.use_span(started, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield started
        except BaseException as exc:
            started.set_status(trace.StatusCode.ERROR, type(exc).__name__)
            raise


def inject(of: Span | None = None) -> str:
    """Return the traceparent of `of`, or of the current span; empty when there is none."""
    context = (of or trace.get_current_span()).get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def extract(traceparent: str) -> Context | None:
    """Return the context that `traceparent` names; None when it is malformed.

    Source: W3C Trace Context, section 3.2.
    """
    parts = traceparent.split("-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2] or parts[0] == "ff":
        return None
    try:
        ids = SpanContext(int(parts[1], 16), int(parts[2], 16), True, TraceFlags(int(parts[3], 16)))
    except ValueError:
        return None
    return trace.set_span_in_context(NonRecordingSpan(ids), Context()) if ids.is_valid else None


def trace_id(traceparent: str) -> str | None:
    """Return the trace id inside a traceparent, for the log."""
    context = extract(traceparent)
    return None if context is None else traceparent.split("-")[1]
