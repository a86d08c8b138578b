"""Streams of scheduler and kvmanager carry several messages as one, not to a peer that cannot read that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
import pytest

from protos.kvmanager.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.gather import each
from services.chassis.grpc import bind, create_channel, create_server
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import BlockHash, Epoch, RequestId, RequestKey, TenantId
from services.rpc.convert import peer_to_pb
from services.rpc.gateway_scheduler_link import SchedulerLink
from services.rpc.gateway_values import Acquisition
from services.rpc.scheduler_kvmanager_link import KvManagerLink
from tests.fakes.kv_peers import serving
from tests.integration.running_scheduler import scheduler

LIMIT_S = 60.0
EITHER = pytest.mark.parametrize("reads_several", [True, False])


def peer(name: str, reads_several: bool) -> types_pb2.Peer:
    peer = peer_to_pb(name, Epoch(1), "test")
    peer.reads_several = reads_several
    return peer


async def first_kinds(call: Any, hello: Any) -> list[list[str]]:
    """Return the kinds in each of the messages that a server says first, up to the second kind."""
    outbox: Outbox[Any] = Outbox()
    outbox.put_nowait(hello)
    stream = call(outbox)
    heard: list[list[str]] = []
    async with asyncio.timeout(LIMIT_S):
        async for message in stream:
            heard.append([one.WhichOneof("message") for one in each(message)])
            if sum(map(len, heard)) >= 2:
                break
    stream.cancel()
    return heard


@EITHER
async def test_the_scheduler_gathers_for_gateways_that_read_it(reads_several: bool) -> None:
    async with scheduler() as running:
        hello = scheduler_pb2.GatewayHello(peer=peer("gateway-0", reads_several))
        stub = scheduler_pb2_grpc.SchedulerServiceStub(running.channel)
        heard = await first_kinds(stub.ConnectGateway, scheduler_pb2.ConnectGatewayRequest(hello=hello))
    told = [["welcome", "models"]] if reads_several else [["welcome"], ["models"]]
    assert [kinds[:2] for kinds in heard] == told


@EITHER
async def test_the_kvmanager_gathers_for_schedulers_that_read_it(reads_several: bool) -> None:
    async with serving() as served:
        hello = kvmanager_pb2.MatchRequest(hello=peer("scheduler", reads_several))
        heard = await first_kinds(served.stub.Match, hello)
    told = [["welcome", "caps"]] if reads_several else [["welcome"], ["caps"]]
    assert [kinds[:2] for kinds in heard] == told


class Listener(scheduler_pb2_grpc.SchedulerServiceServicer, kvmanager_pb2_grpc.KvManagerServiceServicer):
    """A scheduler and a kvmanager that welcome, and keep what comes as it came."""

    def __init__(self, reads_several: bool) -> None:
        self._reads_several = reads_several
        self.heard: list[list[Any]] = []
        self.changed = asyncio.Condition()

    async def ConnectGateway(self, requests: Any, context: grpc.aio.ServicerContext) -> None:
        welcome = scheduler_pb2.GatewayWelcome(peer=peer("scheduler", self._reads_several), term=1)
        await self._listen(requests, context, scheduler_pb2.ConnectGatewayResponse, welcome)

    async def Match(self, requests: Any, context: grpc.aio.ServicerContext) -> None:
        welcome = peer("kvmanager", self._reads_several)
        await self._listen(requests, context, kvmanager_pb2.MatchResponse, welcome)

    async def _listen(self, requests: Any, context: Any, response: Any, welcome: Any) -> None:
        await first_message(requests)
        outbox: Outbox[Any] = Outbox()
        outbox.put_nowait(response(welcome=welcome))

        def beat() -> Any:
            return response(heartbeat=types_pb2.Heartbeat())

        await serve_duplex(context, self._kept(requests), outbox, lambda message: None, beat)

    async def _kept(self, requests: Any) -> AsyncIterator[Any]:
        async for message in requests:
            async with self.changed:
                self.heard.append(list(each(message)))
                self.changed.notify_all()
            yield message

    async def sizes(self, kind: str, count: int) -> list[int]:
        """Wait for so many messages of a kind; return how many came in each message that had some."""

        def sizes() -> list[int]:
            of_kind = [sum(one.HasField(kind) for one in together) for together in self.heard]
            return [size for size in of_kind if size]

        async with asyncio.timeout(LIMIT_S), self.changed:
            await self.changed.wait_for(lambda: sum(sizes()) >= count)
            return sizes()


async def sizes_sent(
    reads_several: bool,
    open_link: Callable[[grpc.aio.Channel], tuple[Any, asyncio.Event, Any]],
    kind: str,
    count: int = 10,
) -> list[int]:
    """Let a link say ten things in one turn once it is welcome, and wait for `count` in all.

    Returns:
        How many came in each message.
    """
    listener, server = Listener(reads_several), create_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(listener, server)
    kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(listener, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with create_channel(f"127.0.0.1:{port}") as channel:
        link, welcome, say = open_link(channel)
        running = asyncio.create_task(link.run())
        try:
            await asyncio.wait_for(welcome.wait(), LIMIT_S)
            for number in range(10):
                say(RequestKey(RequestId(f"r{number}"), 1))
            return await listener.sizes(kind, count)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(None)


class AsAsked:
    """Tenants that nobody edits."""

    def applied(self, one: Acquisition) -> Acquisition:
        return one

    def weights(self, told: Mapping[TenantId, float]) -> dict[TenantId, float]:
        return {}


class Sink:
    def on_placed(self, placement: Any) -> None: ...

    def on_queued(self, position: int, expected_wait_s: float | None) -> None: ...

    def on_rejected(self, error: Any) -> None: ...


def acquisition(key: RequestKey, num_blocks: int = 0) -> Acquisition:
    return Acquisition(
        key=key,
        tenant=TenantId("t"),
        band=Band.STANDARD,
        request_class=RequestClass.SHORT,
        model="m",
        num_prompt_tokens=16 * num_blocks + 8,
        max_output_tokens=8,
        num_choices=1,
        block_hashes=[BlockHash(bytes(16))] * num_blocks,
        limits=Limits(),
        asked_at=0.0,
    )


async def test_more_waits_than_one_message_takes_and_all_of_it_is_asked_for_again() -> None:
    """160 prompts of 128k tokens: their hashes alone are 21 MB, a channel takes 16."""

    def open_link(channel: grpc.aio.Channel) -> tuple[Any, asyncio.Event, Any]:
        link = SchedulerLink(channel, name="gateway-0", epoch=lambda: Epoch(1), build="test", terms=AsAsked())
        for number in range(160):
            link.acquire(acquisition(RequestKey(RequestId(f"w{number}"), 1), num_blocks=8192), Sink())
        at_once = asyncio.Event()
        at_once.set()
        return link, at_once, lambda key: link.acquire(acquisition(key), Sink())

    in_hello = 2**20 // (8192 * 18)
    assert await sizes_sent(False, open_link, "acquire", 160 - in_hello + 10)


@EITHER
async def test_a_gateway_gathers_what_it_asks_for(reads_several: bool) -> None:
    def open_link(channel: grpc.aio.Channel) -> tuple[Any, asyncio.Event, Any]:
        welcome = asyncio.Event()

        def on_change() -> None:
            if link.is_connected:
                welcome.set()

        link = SchedulerLink(
            channel,
            name="gateway-0",
            epoch=lambda: Epoch(1),
            build="test",
            terms=AsAsked(),
            on_change=on_change,
        )

        def say(key: RequestKey) -> None:
            link.acquire(acquisition(key), Sink())

        return link, welcome, say

    assert await sizes_sent(reads_several, open_link, "acquire") == ([10] if reads_several else [1] * 10)


@EITHER
async def test_a_scheduler_gathers_its_questions(reads_several: bool) -> None:
    def open_link(channel: grpc.aio.Channel) -> tuple[Any, asyncio.Event, Any]:
        welcome = asyncio.Event()
        link = KvManagerLink(
            channel,
            name="scheduler",
            epoch=lambda: Epoch(1),
            build="test",
            on_answer=lambda key, answer: None,
            on_connected=lambda on: welcome.set() if on else None,
            on_caps=lambda caps: None,
        )

        def say(key: RequestKey) -> None:
            link.ask(key, [], tenant=TenantId("t"), own_salt=False, namespace=None)

        return link, welcome, say

    assert await sizes_sent(reads_several, open_link, "query") == ([10] if reads_several else [1] * 10)
