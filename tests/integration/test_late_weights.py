"""Two gateways at one scheduler, of which one follows an edit of a tenant later than the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.core.directory import Change, Entry, Kind, Stored, TenantDirectory
from gateway.live_table import LiveTable
from gateway.tenant_terms import CurrentTerms
from scheduler.core.fair_queue import FairPolicy
from services.chassis.grpc import create_channel
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import Epoch, RequestId, RequestKey, TenantId
from services.rpc.gateway_scheduler_link import SchedulerLink
from services.rpc.gateway_values import Acquisition
from tests.fakes.scheduler_peers import FakeWorker
from tests.integration.running_scheduler import Running, eventually, scheduler

X = TenantId("x")


class Sink:
    def on_placed(self, placement: Any) -> None: ...

    def on_queued(self, position: int, expected_wait_s: float | None) -> None: ...

    def on_rejected(self, error: Any) -> None: ...


class Gateway:
    """A link with a gateway's own knowledge of tenants; nothing is live on a worker."""

    def __init__(self, channel: Any, name: str) -> None:
        self._directory = TenantDirectory()
        self._directory.replace(Stored(store="s", version=1, tenants={X: {"id": X, "weight": 1.0}}, keys={}))
        terms = CurrentTerms(self._directory, LiveTable(10), 2048)
        self.link = SchedulerLink(channel, name=name, epoch=lambda: Epoch(1), build="test", terms=terms)
        self._name = name

    def ask(self) -> RequestKey:
        """Let a request of x wait."""
        key = RequestKey(RequestId(f"of-{self._name}"), 1)
        asked = Acquisition(
            key=key,
            tenant=X,
            band=Band.STANDARD,
            request_class=RequestClass.SHORT,
            model="m",
            num_prompt_tokens=8,
            max_output_tokens=8,
            num_choices=1,
            block_hashes=[],
            limits=Limits(),
            asked_at=0.0,
        )
        self.link.acquire(asked, Sink())
        return key

    def follows(self, weight: float) -> None:
        """The edit of x has come here."""
        after = {"id": X, "weight": weight}
        change = Change(kind=Kind.TENANT, id=X, tenant=X, before=None, after=after)
        version = self._directory.version + 1
        self._directory.apply([Entry(version=version, who="admin", at=0.0, change=change)])
        self.link.edited()


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[None]:
    task = asyncio.create_task(gateway.link.run())
    try:
        await eventually(lambda: gateway.link.is_connected)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def weight_of_x(running: Running) -> float:
    return next(one.weight for one in running.dispatcher.core.room.tenants if one.tenant == X)


@pytest.mark.parametrize("is_lost", [False, True], ids=["connected", "reconnected"])
async def test_a_late_gateway_puts_right_what_it_said_of_a_tenant_it_has_nothing_more_of(
    is_lost: bool,
) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(scheduler(new_policy=FairPolicy))
        room = running.dispatcher.core.room
        await FakeWorker(running.channel).connect(granted=0)
        channels = [
            await stack.enter_async_context(create_channel(f"127.0.0.1:{running.port}")) for _ in range(2)
        ]
        early, late = (Gateway(channel, f"gateway-{i}") for i, channel in enumerate(channels))
        await stack.enter_async_context(connected(early))
        early.ask()
        await eventually(lambda: len(room) == 1)
        async with connected(late):
            early.follows(4.0)
            await eventually(lambda: weight_of_x(running) == 4.0)
            key = late.ask()
            await eventually(lambda: len(room) == 2)
            assert weight_of_x(running) == 1.0, "it says what it knows"
            late.link.abandon(key)
            await eventually(lambda: len(room) == 1)
            if not is_lost:
                late.follows(4.0)
                await eventually(lambda: weight_of_x(running) == 4.0)
        if is_lost:
            late.follows(4.0)
            async with connected(late):
                await eventually(lambda: weight_of_x(running) == 4.0)
