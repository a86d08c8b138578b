"""What a stream over real gRPC leaves in the gateway's metrics and traces."""

import asyncio
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fakes.gateway_rig import Rig, a_request, gateway_rig, generate
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.worker_server import endless

STATES = ("preparing", "waiting", "placed", "running")


@pytest.mark.failure("B156")
@pytest.mark.failure("B160")
async def test_metrics_count_each_request_once(rig: Rig) -> None:
    rig.worker.step_s = 0.002
    await asyncio.gather(*[generate(rig) for _ in range(20)])
    assert rig.metric("gen_ai_server_time_to_first_token_seconds_count", model="tiny") == 20
    assert rig.metric("quire_requests_finished_total", reason="ok") == 20
    assert rig.metric("quire_output_tokens_sum", model="tiny") == 220
    rig.parts.observe_levels()
    assert sum(rig.metric("quire_requests", state=state) for state in STATES) == len(rig.parts.table) == 0


@pytest.mark.failure("B156")
async def test_the_time_to_the_first_token_is_from_arrival_to_delivery(rig: Rig) -> None:
    rig.scheduler.holds = True
    began = time.monotonic()
    answer = asyncio.create_task(generate(rig))
    await rig.until(lambda: rig.scheduler.acquired)
    held_from = time.monotonic()
    await rig.until(lambda: time.monotonic() > held_from + 0.05)
    rig.scheduler.holds = False
    rig.scheduler.place_all()
    ttft_s = (await answer).receipt.ttft_ms / 1000
    name = "gen_ai_server_time_to_first_token_seconds"
    assert rig.metric(f"{name}_count", model="tiny") == 1
    assert rig.metric(f"{name}_sum", model="tiny") == pytest.approx(ttft_s, rel=1e-3)
    assert 0.05 <= ttft_s <= time.monotonic() - began


async def test_requests_admitted_without_the_store_are_in_a_gauge_until_it_takes_another() -> None:
    quota = MemoryQuota(time.time)

    def granted(rig: Rig) -> float:
        rig.parts.observe_levels()
        return rig.metric("quire_outage_grants")

    async with gateway_rig(quota=quota) as rig:
        assert granted(rig) == 0
        quota.is_down = True
        await generate(rig)
        assert granted(rig) == 1
        quota.is_down = False
        await rig.settled()
        await generate(rig)
        assert granted(rig) == 0


@pytest.mark.failure("B160")
async def test_every_live_request_is_in_one_gauge_with_the_age_of_the_oldest(rig: Rig) -> None:
    def gauges() -> dict[str, float]:
        rig.parts.observe_levels()
        return {state: rig.metric("quire_requests", state=state) for state in STATES}

    rig.worker.script, rig.worker.step_s = endless, 0.1
    calls = [rig.stub.Generate(a_request(max_output_tokens=2000))]
    await rig.until(lambda: gauges()["running"] == 1)
    rig.worker.is_open.clear()
    calls.append(rig.stub.Generate(a_request()))
    await rig.until(lambda: gauges()["placed"] == 1)
    rig.scheduler.holds = True
    calls += [rig.stub.Generate(a_request()) for _ in range(2)]
    await rig.until(lambda: gauges()["waiting"] == 2)
    assert gauges() == {"preparing": 0, "waiting": 2, "placed": 1, "running": 1}
    assert len(rig.parts.table) == 4
    ages = [
        rig.metric("quire_oldest_request_seconds", state=state) for state in ("running", "placed", "waiting")
    ]
    assert ages[0] > ages[1] > ages[2] > 0, "they came in this order"
    for call in calls:
        call.cancel()
    rig.worker.is_open.set()
    await rig.settled()
    assert not any(gauges().values())
    assert rig.metric("quire_oldest_request_seconds", state="waiting") == 0


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
