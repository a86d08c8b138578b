"""What operators see of a running suite moves when what it stands for happens: metrics, events, log lines."""

import asyncio
import json
from typing import Any

import pytest

from services.client import AsyncClient
from services.domain.errors import ServeError
from tests.e2e.stack import Samples, Stack
from tests.e2e.waiting import until

PROCESSES = ("gateway", "scheduler", "kvmanager", "worker-0", "worker-1")
NUM_CROWD = 24
ROUNDS = 5
"""On a machine that stalls half of a crowd may be over before the rest comes."""
CROWD_TOKENS = 320
"""What each of the crowd writes: it comes to 23 of the 160 pages of its worker, which has 12 of them."""
OF_WORKERS = (
    ("quire_kv_transitions_total", {"to": "allocated"}),
    ("quire_kv_transitions_total", {"to": "prefill"}),
    ("quire_kv_transitions_total", {"to": "decode"}),
    ("quire_kv_transitions_total", {"to": "cached"}),
    ("quire_kv_transitions_total", {"to": "free"}),
    ("quire_kv_allocation_failures_total", {}),
    ("quire_preemptions_total", {}),
    ("quire_batch_size_count", {}),
    ("quire_step_seconds_count", {"phase": "decode"}),
    ("quire_step_seconds_sum", {"phase": "decode"}),
    ("gen_ai_server_time_per_output_token_seconds_count", {}),
    ("gen_ai_server_request_duration_seconds_count", {}),
)
OF_THE_GATEWAY = (
    ("quire_tokenize_seconds_count", {}),
    ("quire_tokenize_seconds_sum", {}),
    ("quire_serialize_seconds_count", {}),
    ("quire_serialize_seconds_sum", {}),
    ("gen_ai_server_time_per_output_token_seconds_count", {}),
    ("gen_ai_server_time_per_output_token_seconds_sum", {}),
    ("gen_ai_server_request_duration_seconds_count", {"reason": "ok"}),
    ("gen_ai_server_request_duration_seconds_sum", {"reason": "ok"}),
    ("quire_requests_finished_total", {"reason": "ok"}),
)


class Readings:
    """All metrics of a stack at one moment."""

    def __init__(self, samples: dict[str, Samples]) -> None:
        self._samples = samples

    def of_workers(self, name: str, labels: dict[str, str]) -> float:
        return sum(self._samples[worker].sum(name, **labels) for worker in ("worker-0", "worker-1"))

    def of_the_gateway(self, name: str, labels: dict[str, str]) -> float:
        return self._samples["gateway"].sum(name, **labels)


async def read(stack: Stack) -> Readings:
    return Readings({name: await stack.metrics(name) for name in PROCESSES})


async def one_of_the_crowd(client: AsyncClient, number: int) -> int:
    whole = await client.generate_text([2000 + number] * 40, max_output_tokens=CROWD_TOKENS, ignore_eos=True)
    return whole.receipt.preemptions


async def test_a_crowd_on_a_small_pool_moves_every_metric_and_its_preemptions_are_events(calm: Stack) -> None:
    before = await read(calm)
    preemptions = 0
    async with calm.client() as client:
        for _ in range(ROUNDS):
            crowd = [one_of_the_crowd(client, number) for number in range(NUM_CROWD)]
            preemptions += sum(await asyncio.gather(*crowd))
            if preemptions:
                break
    assert preemptions > 0, "the crowd was meant to be too large for the pool"
    after = await read(calm)
    still = [
        (name, labels)
        for names, value in ((OF_WORKERS, Readings.of_workers), (OF_THE_GATEWAY, Readings.of_the_gateway))
        for name, labels in names
        if value(after, name, labels) <= value(before, name, labels)
    ]
    assert still == []
    told = after.of_workers("quire_preemptions_total", {}) - before.of_workers("quire_preemptions_total", {})
    assert told == preemptions
    for name in ("gateway.generate", "worker.request"):
        await until(f"{name} has the event", lambda name=name: preempted(calm, name), limit_s=60)


async def preempted(stack: Stack, span_name: str) -> list[dict[str, Any]]:
    """Return the finished spans of that name in which a preemption is an event."""
    lines = (await asyncio.to_thread(stack.trace_file.read_text)).splitlines()
    spans = [span for span in map(json.loads, lines) if span["name"] == span_name]
    return [span for span in spans if "preempted" in [event["name"] for event in span["events"]]]


@pytest.mark.failure("B001")
async def test_the_line_of_a_cancelled_request_says_what_it_held_at_peak(calm: Stack) -> None:
    async with calm.client() as client:
        async with client.generate([5] * 160, max_output_tokens=2000, ignore_eos=True) as stream:
            async for _ in stream.text():
                break
            assert stream.started is not None
            request_id = stream.started.request_id
        with pytest.raises(ServeError):
            await stream.completion()

    async def line() -> list[dict[str, Any]]:
        log = await asyncio.to_thread((calm.folder / "run" / "latest" / "gateway.log").read_text)
        lines = [json.loads(one) for one in log.splitlines() if request_id in one]
        return [one for one in lines if one["event"] == "request_finished"]

    (told,) = await until("its line", line, limit_s=60)
    assert told["reason"] == "CANCELLED"
    assert told["prompt_tokens"] == 160
    assert 10 <= told["peak_pages"] <= 160
    assert told["preemptions"] == 0
