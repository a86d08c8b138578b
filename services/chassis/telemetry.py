"""Tracing: spans named `service.verb`, W3C trace context between processes, export that cannot fail a call.

Knows spans and where they go; does not know which hop is which. Cheap when off: no span is recorded, but a
caller's trace context still passes through.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

from services.chassis.fatal import ConfigError

_log = structlog.get_logger()


def configure_tracing(service: str, exporter: str = "none") -> Callable[[], None]:
    """Say where this process's spans go; return what flushes and ends the export.

    Args:
        exporter: `none`; `otlp` (endpoint from the standard OTEL_ variables); or `file:PATH`, JSON lines.

    Raises:
        ConfigError: No such exporter, or its file cannot be written.
    """
    if exporter == "none":
        return lambda: None
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(_create_exporter(service, exporter)))
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


def _create_exporter(service: str, exporter: str) -> SpanExporter:
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    if exporter.startswith("file:"):
        return FileSpanExporter(service, exporter.removeprefix("file:"))
    raise ConfigError(f"--trace must be none, otlp or file:PATH, got {exporter!r}")


class FileSpanExporter(SpanExporter):
    """Append finished spans to a file, one JSON object a line; several processes may share the file."""

    def __init__(self, service: str, path: str) -> None:
        self._service = service
        self._lock = threading.Lock()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as exc:
            raise ConfigError(f"--trace: cannot write {path}: {exc.strerror}") from exc

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = b"".join(orjson.dumps(self._as_dict(one)) + b"\n" for one in spans)
        try:
            with self._lock:
                os.write(self._fd, lines)  # One write: lines of several processes do not mix.
        except OSError as exc:
            _log.warning("span_export_failed", error=type(exc).__name__)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _as_dict(self, one: ReadableSpan) -> dict[str, Any]:
        context = one.get_span_context()
        assert context is not None
        assert one.start_time is not None
        assert one.end_time is not None
        return {
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "parent_id": None if one.parent is None else f"{one.parent.span_id:016x}",
            "service": self._service,
            "name": one.name,
            "start_us": one.start_time // 1000,
            "duration_us": (one.end_time - one.start_time) // 1000,
            "status": one.status.status_code.name,
            "attributes": dict(one.attributes or {}),
            "events": [
                {"name": e.name, "at_us": e.timestamp // 1000, "attributes": dict(e.attributes or {})}
                for e in one.events
            ],
        }
