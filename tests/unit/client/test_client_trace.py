"""A caller's trace goes on into the gateway."""

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from services.client.connection import Connection

SPAN = NonRecordingSpan(SpanContext(0xABC, 0xDEF, False, TraceFlags(1)))
TRACEPARENT = f"00-{0xABC:032x}-{0xDEF:016x}-01"


def connection(**metadata: str) -> Connection:
    return Connection(
        target="127.0.0.1:1", api_key=None, model=None, timeout_s=1.0, credentials=None, metadata=metadata
    )


def test_the_current_span_travels_with_a_call() -> None:
    with trace.use_span(SPAN):
        assert connection().call_metadata() == (("traceparent", TRACEPARENT),)
    assert connection().call_metadata() == ()


def test_a_traceparent_given_by_hand_wins() -> None:
    with trace.use_span(SPAN):
        assert connection(traceparent="mine").call_metadata() == (("traceparent", "mine"),)
