"""One trace from the caller through all hops to the step loop and back."""

import json

from tests.e2e.stack import Stack
from tests.e2e.waiting import until

TRACE_ID = "5f1ce0ac4f6a4b1d9a3f2c1e0b7d8a96"
CALLERS_SPAN = "00f067aa0ba902b7"
NUM_TOKENS = 64
HOPS = {"gateway.generate", "scheduler.acquire", "kvmanager.match", "worker.request"}


async def spans_of(stack: Stack) -> list[dict[str, object]]:
    if not stack.trace_file.exists():
        return []
    lines = stack.trace_file.read_text().splitlines()
    return [span for span in map(json.loads, lines) if span["trace_id"] == TRACE_ID]


def events_of(span: dict[str, object]) -> list[str]:
    events = span["events"]
    assert isinstance(events, list)
    return [event["name"] for event in events]


async def test_one_trace_leads_through_every_hop_and_says_nothing_per_token(calm: Stack) -> None:
    async with calm.client(traceparent=f"00-{TRACE_ID}-{CALLERS_SPAN}-01") as client:
        whole = await client.generate_text([9] * 50, max_output_tokens=NUM_TOKENS, ignore_eos=True)
    spans = await until(
        "spans of all hops",
        lambda: spans_of(calm),
        limit_s=60,
        good=lambda found: HOPS.issubset(span["name"] for span in found),
    )
    services = {span["service"] for span in spans}
    assert {"gateway-0", "scheduler", "kvmanager", whole.receipt.worker} <= services
    by_id = {span["span_id"]: span for span in spans}
    roots = [span for span in spans if span["parent_id"] not in by_id]
    assert {span["parent_id"] for span in roots} == {CALLERS_SPAN}
    gateway = next(span for span in spans if span["name"] == "gateway.generate")
    worker = next(span for span in spans if span["name"] == "worker.request")
    assert by_id[worker["parent_id"]]["trace_id"] == gateway["trace_id"]
    assert "first_token" in events_of(gateway)
    assert "first_token" in events_of(worker)
    assert "finished" in events_of(worker)
    assert len(spans) <= 8
    assert sum(len(events_of(span)) for span in spans) < NUM_TOKENS / 2
