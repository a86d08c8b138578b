import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.errors import ErrorInterceptor, from_rpc_error
from services.chassis.fatal import BusyPort, ConfigError, FatalError
from services.chassis.grpc import (
    SETTINGS,
    GrpcSettings,
    add_health_and_reflection,
    bind,
    check_bind,
    create_channel,
    create_server,
    split_address,
)
from services.domain.errors import InvalidField

SERVICE = "protos.gateway.v1.GenerateService"


class Echo(gateway_pb2_grpc.GenerateServiceServicer):
    """Says how large a request was; or answers with as many bytes as `return_bytes` of a number asks for."""

    async def Tokenize(self, request: Any, context: Any) -> pb.TokenizeResponse:
        if request.return_bytes:
            return sized(pb.TokenizeResponse(bytes=[b""]), int(request.text))
        return pb.TokenizeResponse(max_context_tokens=request.ByteSize())


def sized(message: Any, num_bytes: int) -> Any:
    """Fill the last bytes or text of a message until it has exactly `num_bytes`."""
    for filler in range(num_bytes - message.ByteSize() - 8, num_bytes):
        if isinstance(message, pb.TokenizeRequest):
            message.text = "x" * filler
        else:
            message.bytes[0] = b"x" * filler
        if message.ByteSize() == num_bytes:
            return message
    raise AssertionError("no filler gives exactly so many bytes")


@pytest.fixture
async def echo() -> AsyncIterator[Any]:
    server = create_server(interceptors=[ErrorInterceptor()])
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(Echo(), server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with create_channel(f"127.0.0.1:{port}") as channel:
        yield gateway_pb2_grpc.GenerateServiceStub(channel)
    await server.stop(None)


@pytest.mark.failure("B134")
def test_a_client_that_would_ping_too_often_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="at least twice"):
        GrpcSettings(ping_every_ms=4_000)
    assert (
        dict(SETTINGS.server())["grpc.http2.min_ping_interval_without_data_ms"] * 2 <= SETTINGS.ping_every_ms
    )


@pytest.mark.failure("B139")
async def test_a_request_over_the_limit_is_refused_in_our_words_and_by_grpc_far_beyond(echo: Any) -> None:
    most = SETTINGS.max_message_bytes
    assert (await echo.Tokenize(sized(pb.TokenizeRequest(), most))).max_context_tokens == most
    for num_bytes in (most + 1, SETTINGS.refusable_bytes):
        with pytest.raises(grpc.RpcError) as caught:
            await echo.Tokenize(sized(pb.TokenizeRequest(), num_bytes))
        error = from_rpc_error(caught.value)
        assert isinstance(error, InvalidField)
        assert error.message == f"request: must be at most {most} bytes, got {num_bytes}"
        assert error.detail.field == "request"
    with pytest.raises(grpc.RpcError) as caught:
        await echo.Tokenize(sized(pb.TokenizeRequest(), SETTINGS.refusable_bytes + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.failure("B139")
async def test_an_answer_may_be_as_large_as_both_ends_allow_and_no_larger(echo: Any) -> None:
    def ask(num_bytes: int) -> pb.TokenizeRequest:
        return pb.TokenizeRequest(text=str(num_bytes), return_bytes=True)

    for num_bytes in (5_000_000, SETTINGS.max_message_bytes):
        assert (await echo.Tokenize(ask(num_bytes))).ByteSize() == num_bytes
    with pytest.raises(grpc.RpcError) as caught:
        await echo.Tokenize(ask(SETTINGS.max_message_bytes + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.failure("B139")
def test_both_ends_have_the_same_limits() -> None:
    server, channel = dict(SETTINGS.server()), dict(SETTINGS.channel())
    sent, received = "grpc.max_send_message_length", "grpc.max_receive_message_length"
    assert server[received] == channel[sent] == SETTINGS.refusable_bytes
    assert server[sent] == channel[received] == SETTINGS.max_message_bytes


async def test_a_busy_port_is_named_with_what_to_do() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(BusyPort, match=f"port {port} .*--port-offset"):
            bind(create_server(), f"127.0.0.1:{port}")


async def test_two_servers_cannot_share_a_port() -> None:
    first = create_server()
    port = bind(first, "127.0.0.1:0")
    with pytest.raises(BusyPort):
        bind(create_server(), f"127.0.0.1:{port}")
    await first.stop(None)


async def test_a_foreign_address_is_one_line() -> None:
    with pytest.raises(FatalError, match=r"cannot listen on 192\.0\.2\.1:1"):
        bind(create_server(), "192.0.2.1:1")


def test_addresses_are_split() -> None:
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    with pytest.raises(ConfigError, match="host:port"):
        split_address("80")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    check_bind(host, insecure=False, has_credentials=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_beyond_loopback_needs_credentials_or_insecure(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        check_bind(host, insecure=False, has_credentials=False)
    check_bind(host, insecure=True, has_credentials=False)
    check_bind(host, insecure=False, has_credentials=True)


async def test_health_follows_the_state_and_begins_not_serving() -> None:
    server = create_server()
    health = add_health_and_reflection(server, [SERVICE])
    port = bind(server, "127.0.0.1:0")
    await server.start()
    statuses = health_pb2.HealthCheckResponse
    async with create_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == statuses.NOT_SERVING
        health.set_serving()
        assert (await watch.read()).status == statuses.SERVING
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == statuses.SERVING
        health.set_not_serving()
        assert (await watch.read()).status == statuses.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()
    await asyncio.wait_for(server.stop(None), 60)
