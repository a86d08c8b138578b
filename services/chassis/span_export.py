"""Where finished spans go: OTLP, or a file of JSON lines. A failed export is logged and never felt by a call.

Knows the OpenTelemetry SDK, which is imported only where tracing is on; knows no span by name.
"""

import os
import threading
from collections.abc import Sequence
from typing import Any

import orjson
import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from services.chassis.fatal import ConfigError

_log = structlog.get_logger()


def create_provider(service: str, exporter: str) -> TracerProvider:
    """Return a provider whose spans go to `exporter` (`otlp` or `file:PATH`) in batches, from a thread.

    Raises:
        ConfigError: No such exporter, or its file cannot be written.
    """
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(_create_exporter(service, exporter)))
    return provider


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
