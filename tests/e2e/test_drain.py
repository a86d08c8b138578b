"""The suite is told to stop, is killed, or is renewed process by process, while streams run."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.admin.v1 import admin_pb2
from protos.gateway.v1 import gateway_pb2
from protos.worker.v1 import worker_pb2
from services.chassis.grpc import create_channel
from services.client import AsyncClient
from services.domain.errors import Code, Draining, ServeError
from tests.e2e.callers import Callers
from tests.e2e.leftovers import leftovers
from tests.e2e.stack import Stack, running
from tests.e2e.stack_setup import Setup
from tests.e2e.waiting import until

DRAIN_LIMIT_S = 30.0
"""Of each process; the gateway's is over before the workers' begins."""
NUM_CALLERS = 16
GATEWAY_SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["GenerateService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
WORKER_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def passing(model_path: Path, tmp_path: Path) -> Iterator[Stack]:
    """A stack that this test ends."""
    with running(Setup(step_ms=8.0), model_path, tmp_path) as stack:
        yield stack


@pytest.fixture
def slow(model_path: Path, tmp_path: Path) -> Iterator[Stack]:
    """A stack that this test ends, in which 2,000 tokens take longer than the drain limit."""
    with running(Setup(step_ms=20.0), model_path, tmp_path) as stack:
        yield stack


async def none_alive(family: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


async def end_of(client: AsyncClient, number: int, num_tokens: int) -> int | ServeError:
    """Return the tokens of a whole answer, or the error."""
    try:
        whole = await client.generate_text([number] * 30, max_output_tokens=num_tokens, ignore_eos=True)
    except ServeError as error:
        return error
    return whole.receipt.usage.output_tokens


async def all_run(stack: Stack, number: int) -> None:
    await until(
        "all run",
        stack.workers,
        limit_s=60,
        good=lambda workers: sum(one.running for one in workers) >= number,
    )


@pytest.mark.slow
@pytest.mark.failure("B137")
async def test_told_to_stop_it_finishes_what_runs_and_says_to_the_rest_why_not(slow: Stack) -> None:
    """Ten answers end in time; two take too long; one more comes too late; one is never read."""
    async with slow.client() as client:
        short = [asyncio.create_task(end_of(client, 100 + n, 200)) for n in range(10)]
        endless = [asyncio.create_task(end_of(client, 200 + n, 2000)) for n in range(2)]
        unread = client.generate([300] * 30, max_output_tokens=2000, ignore_eos=True)
        async for _ in unread.text():
            break
        await all_run(slow, 13)
        family = slow.family()
        slow.process("up").terminate()
        late = await until(
            "new requests are refused",
            lambda: end_of(client, 400, 5),
            limit_s=60,
            good=lambda end: isinstance(end, ServeError),
        )
        assert isinstance(late, Draining)
        assert late.detail.retry_after_s is not None
        assert await asyncio.gather(*short) == [200] * 10
        for end in await asyncio.gather(*endless):
            assert isinstance(end, Draining)
            assert end.detail.usage is not None
            assert end.detail.usage.output_tokens > 200
            assert end.detail.retry_after_s is not None
        unread.cancel()
    await until(
        "no process is left",
        lambda: none_alive(family),
        limit_s=DRAIN_LIMIT_S + 60,
        good=lambda alive: not alive,
    )
    assert slow.launcher is not None
    assert slow.launcher.wait(60) == 0


async def watch(port: int, service: str, seen: list[int]) -> None:
    """Note every state that `grpc.health.v1` tells of a service, until its server is gone."""
    async with create_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with contextlib.suppress(grpc.RpcError):
            async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=service)):
                seen.append(answer.status)


@pytest.mark.failure("B137")
async def test_one_ctrl_c_lets_answers_end_shows_every_health_that_turns_and_leaves_no_process(
    passing: Stack,
) -> None:
    ports = passing.ports
    doors = {ports.gateway: GATEWAY_SERVICE, ports.admin: ADMIN_SERVICE, ports.worker(0): WORKER_SERVICE}
    seen: dict[int, list[int]] = {port: [] for port in doors}
    watching = [asyncio.create_task(watch(port, name, seen[port])) for port, name in doors.items()]
    async with passing.client() as client:
        stream = client.generate([7] * 30, max_output_tokens=400, ignore_eos=True)
        texts = aiter(stream.text())
        await anext(texts)

        async def all_watched() -> bool:
            return all(seen.values())

        await until("all doors are watched", all_watched, limit_s=60)
        family = passing.family()
        passing.process("up").send_signal(signal.SIGINT)
        async for _ in texts:
            pass
        assert stream.receipt is not None
        assert stream.receipt.usage.output_tokens == 400
    await until(
        "no process is left",
        lambda: none_alive(family),
        limit_s=3 * DRAIN_LIMIT_S,
        good=lambda alive: not alive,
    )
    assert passing.launcher is not None
    assert await asyncio.to_thread(passing.launcher.wait, 60) == 0
    await asyncio.wait_for(asyncio.gather(*watching), 60)
    assert list(seen.values()) == [[SERVING, NOT_SERVING]] * 3


async def test_killing_the_launcher_ends_everything_though_streams_run(passing: Stack) -> None:
    async with passing.client() as client:
        tasks = [asyncio.create_task(end_of(client, 100 + n, 2000)) for n in range(8)]
        await all_run(passing, 8)
        family = passing.family()
        names = {os.path.basename(one.name()) for one in family}
        assert any("valkey" in name or "redis" in name for name in names), names
        passing.process("up").kill()
        await until(
            "no process is left", lambda: none_alive(family), limit_s=60, good=lambda alive: not alive
        )
        for end in await asyncio.gather(*tasks):
            assert isinstance(end, ServeError)
            assert end.code is Code.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.failure("B161")
async def test_renewing_workers_and_gateways_one_by_one_loses_no_request(passing: Stack) -> None:
    """Callers in a closed loop know two gateways; who is refused before the start goes to the other one."""
    port, probe_port = passing.ports.gateway + 40, passing.ports.gateway_probe() + 40
    second = passing.start_gateway("gateway-1", port=port, probe_port=probe_port)
    async with passing.client() as one, passing.client(port=port) as other:
        await until("both gateways serve", lambda: both_serve(one, other), limit_s=60)
        async with Callers([one, other], NUM_CALLERS, 80) as callers:
            for name in ("worker-0", "worker-1"):
                await renew(passing, name, callers)
            second.send_signal(signal.SIGTERM)
            await asyncio.to_thread(second.wait, DRAIN_LIMIT_S + 60)
            passing.start_gateway("gateway-1", port=port, probe_port=probe_port)
            await until("both gateways serve", lambda: both_serve(one, other), limit_s=60)
            await renew(passing, "gateway", callers)
    assert callers.failed == []
    assert callers.num_wrong == 0
    assert callers.num_whole > NUM_CALLERS * 4
    await until("nothing is held", lambda: leftovers(passing), limit_s=60, good=lambda left: not left)


async def both_serve(*clients: AsyncClient) -> bool:
    try:
        return all([await client.models() for client in clients])
    except ServeError:
        return False


async def renew(stack: Stack, name: str, callers: Callers) -> None:
    """End one process by SIGTERM and wait until its successor serves and callers have gone on."""
    old = stack.process(name)
    old.terminate()

    async def is_new() -> bool:
        if old.is_running() and old.status() != psutil.STATUS_ZOMBIE:
            return False
        queue = await stack.queue()
        return stack.process(name).pid != old.pid and len(queue.workers) == 2 and queue.num_gateways == 2

    await until(f"{name} is renewed", is_new, limit_s=DRAIN_LIMIT_S + 60)
    num_before = callers.num_whole

    async def num_since() -> int:
        return callers.num_whole - num_before

    await until("callers go on", num_since, limit_s=60, good=lambda number: number >= NUM_CALLERS)
