"""What a stream over real gRPC leaves in the gateway's metrics and traces."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fakes.gateway_rig import Rig, gateway_rig, generate


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with gateway_rig() as started:
        yield started


@pytest.mark.failure("B156")
@pytest.mark.failure("B160")
async def test_metrics_count_each_request_once(rig: Rig) -> None:
    rig.worker.step_s = 0.002
    await asyncio.gather(*[generate(rig) for _ in range(20)])
    assert rig.metric("gen_ai_server_time_to_first_token_seconds_count", model="tiny") == 20
    assert rig.metric("quire_requests_finished_total", reason="ok") == 20
    assert rig.metric("quire_output_tokens_sum", model="tiny") == 220
    rig.parts.observe_levels()
    states = ("preparing", "waiting", "placed", "running")
    assert sum(rig.metric("quire_requests", state=state) for state in states) == len(rig.parts.table) == 0


async def test_a_trace_has_the_events_of_its_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    await generate(rig, metadata=(("traceparent", parent),))
    span = next(one for one in exporter.get_finished_spans() if one.name == "gateway.generate")
    assert [event.name for event in span.events] == ["reserved", "placed", "first_token"]
    assert span.attributes is not None
    assert (span.attributes["reason"], span.attributes["output_tokens"]) == ("ok", 11)
    context = span.get_span_context()
    assert context is not None
    assert f"{context.trace_id:032x}" == "a" * 32
    assert rig.worker.submits[0].traceparent == f"00-{'a' * 32}-{context.span_id:016x}-01"
    assert "hello" not in repr(span.attributes)
