"""The whole suite as processes, by one configuration: who gets in on which hop, with mTLS and without."""

import contextlib
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from services.chassis.grpc import create_channel
from services.chassis.tls import MONITOR, OPERATOR, Tls
from services.client import AsyncClient, ServeError
from services.domain.errors import BadCredential
from services.launcher.sim_model import write_sim_model
from services.rpc.fleet_status import index_status, queue_status, serving, worker_statuses
from tests.fakes.certificates import (
    TEAM,
    channel_to,
    configuration,
    expired,
    files,
    foreign,
    make_certs,
    metrics_of,
    outcome,
)
from tests.fakes.tls_front import tls_front
from tests.fakes.tls_processes import Processes, processes
from tests.fakes.valkey import eventually

LIMIT_S = 60.0
TENANTS = """
[[tenants]]
id = "alpha"
key = "alpha-key-0001"
certificates = ["team-a"]
"""
PROMPT = "all must look before they write " * 8


def client(address: str, **settings: object) -> AsyncClient:
    return AsyncClient(address, model="sim", timeout_s=LIMIT_S, **settings)


async def is_ready(caller: AsyncClient) -> bool:
    try:
        return any(one.num_workers for one in await caller.models())
    except ServeError:
        return False


async def check_hops(running: Processes, caller: AsyncClient, operator: Tls | None) -> None:
    """Send prompts through all services until each link has carried its part; short limits may pass by."""

    async def every_link_was_used() -> bool:
        with contextlib.suppress(ServeError):
            await caller.generate_text(PROMPT, max_output_tokens=4)
        queue = await queue_status(running.address("scheduler"), operator)
        index = await index_status(running.address("kvmanager"), operator)
        [worker] = await worker_statuses([running.address("worker")], operator)
        if queue is None or index is None or worker is None:
            return False
        # gateway -> scheduler <- worker, gateway -> worker, worker -> kvmanager, scheduler -> kvmanager
        used = (queue.placed_total, worker.decode_tokens, index.blocks, index.queries_total)
        return min(used) > 0

    await eventually(lambda: is_ready(caller), limit_s=LIMIT_S)
    await eventually(every_link_was_used, limit_s=LIMIT_S)


@pytest.mark.failure("B179")
async def test_with_tls_every_hop_works_and_lets_nobody_else_in(tmp_path: Path, valkey_url: str) -> None:
    folder = make_certs(tmp_path / "certs")
    config = tmp_path / "quire.toml"
    config.write_text(configuration(folder) + TENANTS)
    model = write_sim_model(tmp_path / "model")
    ca = folder / "ca.pem"
    operator = Tls(files(folder, OPERATOR))
    team = Tls(files(folder, TEAM)).channel_credentials()
    anybody = grpc.ssl_channel_credentials(ca.read_bytes())
    strangers = {
        "no certificate": None,
        "another authority's": foreign(folder, f"{OPERATOR}.quire.internal", tmp_path / "other"),
        "expired": expired(folder, f"{OPERATOR}.quire.internal", tmp_path),
    }
    refused = {}
    async with AsyncExitStack() as stack:
        # The Redis that tests have is built without TLS; this one asks for certificates as one with it does.
        port = await stack.enter_async_context(tls_front(folder, "redis", int(valkey_url.split(":")[2][:-2])))
        secured = f"rediss://127.0.0.1:{port}/0"
        running = await stack.enter_async_context(
            processes(config, model, secured, "--certificate-port", "0")
        )
        async with client(running.address("gateway", "certificate_port"), credentials=team) as caller:
            await check_hops(running, caller, operator)
        doors = running.doors | {"certificates": running.address("gateway", "certificate_port")}
        for door, address in doors.items():
            role = door if door in ("scheduler", "kvmanager", "worker") else "gateway"
            for who, shown in strangers.items():
                refused[door, who] = await outcome(channel_to(address, role, shown, ca=ca))
            refused[door, "plain text"] = await outcome(create_channel(address))
        assert set(refused.values()) == {grpc.StatusCode.UNAVAILABLE}, refused
        monitor = files(folder, MONITOR)
        for name, port in running.probe_ports.items():
            metrics = {who: await metrics_of(name, port, shown, ca=ca) for who, shown in strangers.items()}
            assert metrics == {"no certificate": 403, "another authority's": None, "expired": None}, name
            assert await metrics_of(name, port, files(folder, TEAM), ca=ca) == 403, name
            assert await metrics_of(name, port, monitor, ca=ca) == 200, name
            assert await metrics_of(name, port, None, ca=None) is None, "plain text"
        for door, address in running.doors.items():
            role = "gateway" if door == "admin" else door
            # A tenant's callers have the authority's certificates too, and must not get past the gateway.
            held = {
                name: await outcome(channel_to(address, role, files(folder, name), ca=ca))
                for name in (TEAM, OPERATOR)
            }
            assert held == {TEAM: grpc.StatusCode.PERMISSION_DENIED, OPERATOR: grpc.StatusCode.OK}, door
            # Who is called must be who was meant, whatever listens at its address.
            another = "worker" if role != "worker" else "scheduler"
            assert not await serving(another, address, operator)
        main = running.address("gateway")
        async with client(main, credentials=anybody, api_key="alpha-key-0001") as caller:
            assert (await caller.generate_text("hello", max_output_tokens=2)).text
        async with client(main, credentials=anybody, api_key="alpha-key-0002") as caller:
            with pytest.raises(BadCredential, match="not valid"):
                await caller.models()


async def test_without_tls_the_same_doors_are_open_to_all(tmp_path: Path, valkey_url: str) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(TENANTS)
    model = write_sim_model(tmp_path / "model")
    async with processes(config, model, valkey_url) as running:
        async with client(running.address("gateway"), api_key="alpha-key-0001") as caller:
            await check_hops(running, caller, None)
        let_in = {door: await outcome(create_channel(address)) for door, address in running.doors.items()}
        assert set(let_in.values()) == {grpc.StatusCode.OK}, let_in
        shown = {
            name: await metrics_of(name, port, None, ca=None) for name, port in running.probe_ports.items()
        }
        assert set(shown.values()) == {200}, shown
