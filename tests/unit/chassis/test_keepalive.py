"""Keepalive on a silent stream: pings are answered for ever, and too many of them by nobody of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.grpc import GrpcSettings, bind, create_channel, create_server

PREFACE_BYTES = 24
"""What an HTTP/2 client says first."""
FRAME_HEAD_BYTES = 9
PING = 6
ACK = 1
MANY = 10
"""Far more than the third, for which a server throws a client out. gRPC pings once a second at most."""

pytestmark = pytest.mark.slow


class Silent(gateway_pb2_grpc.GenerateServiceServicer):
    """A prefill that takes until it is told to end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        await self.may_end.wait()
        yield pb.GenerateResponse(receipt=pb.Receipt(request_id="ended"))


class PingCounter:
    """Stands between a client and a server, and counts the client's pings."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.num_pings = 0
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        back = asyncio.create_task(self._pass_on(from_server, writer))
        try:
            to_server.write(await reader.readexactly(PREFACE_BYTES))
            while True:
                head = await reader.readexactly(FRAME_HEAD_BYTES)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == PING and not head[4] & ACK:
                    self.num_pings += 1
                    self.changed.set()
                to_server.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            to_server.close()
            back.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def until(self, num_pings: int) -> None:
        while self.num_pings < num_pings:
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def silent_stream(client: GrpcSettings, server: GrpcSettings) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Yield a call that hears nothing, its service, and the counter between them."""
    service = Silent()
    door = create_server(settings=server)
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, door)
    counter = PingCounter(bind(door, "127.0.0.1:0"))
    await door.start()
    between = await asyncio.start_server(counter.serve, "127.0.0.1", 0)
    port = between.sockets[0].getsockname()[1]
    async with create_channel(f"127.0.0.1:{port}", settings=client) as channel:
        call = gateway_pb2_grpc.GenerateServiceStub(channel).Generate(pb.GenerateRequest())
        yield call, service, counter
        call.cancel()
    between.close()
    await door.stop(None)


@pytest.mark.failure("B134")
async def test_a_silent_stream_survives_many_pings() -> None:
    """The settings that both ends share, as fast as gRPC pings."""
    shared = GrpcSettings(ping_every_ms=25, least_ping_interval_ms=12, ping_timeout_ms=60_000)
    async with silent_stream(shared, shared) as (call, service, counter):
        await asyncio.wait_for(counter.until(MANY), 60)
        service.may_end.set()
        assert (await asyncio.wait_for(call.read(), 60)).receipt.request_id == "ended"
        assert await call.read() is grpc.aio.EOF


@pytest.mark.failure("B134")
async def test_a_client_whose_settings_are_its_own_is_thrown_out() -> None:
    """So the test above can fail: this is what one shared settings object keeps from happening."""
    hasty = GrpcSettings(ping_every_ms=25, least_ping_interval_ms=12, ping_timeout_ms=60_000)
    async with silent_stream(hasty, GrpcSettings()) as (call, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), 60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "too many pings" in str(caught.value).lower().replace("_", " ")
