import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog

from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis import errors
from services.chassis.grpc import bind, create_channel, create_server
from services.domain.errors import (
    Code,
    ErrorDetail,
    InvalidField,
    PromptTooLong,
    QuotaExceeded,
    ServeError,
    WorkerLost,
)
from services.domain.generation import Usage

CANARY = "canary-text-of-a-prompt"


def subclasses(cls: type[ServeError]) -> set[type[ServeError]]:
    return {cls} | {x for sub in cls.__subclasses__() for x in subclasses(sub)}


class Service(gateway_pb2_grpc.GenerateServiceServicer):
    """Does what the test says: raise `error`, or wait for ever and note its release."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.num_messages = 1

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        try:
            self.started.set()
            for _ in range(self.num_messages):
                yield pb.GenerateResponse(delta=pb.Delta(text="x" * 100_000))
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.released.set()

    async def GetRequest(self, request: Any, context: Any) -> pb.GetRequestResponse:
        assert self.error is not None
        raise self.error


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def raw(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    """A channel on which anything can be sent."""
    server = create_server(interceptors=[errors.ErrorInterceptor()])
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    async with create_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.fixture
async def stub(raw: grpc.aio.Channel) -> gateway_pb2_grpc.GenerateServiceStub:
    return gateway_pb2_grpc.GenerateServiceStub(raw)


async def call(stub: Any, streaming: bool) -> None:
    if not streaming:
        await stub.GetRequest(pb.GetRequestRequest())
        return
    async for _ in stub.Generate(pb.GenerateRequest()):
        pass


FULL = ErrorDetail(
    field="sampling.top_p",
    retry_after_s=1.5,
    quota="tenant/local/concurrency",
    usage=Usage(prompt_tokens=7, cached_tokens=3, output_tokens=2),
    metadata={"need": "9", "limit": "8"},
)


@pytest.mark.parametrize("cls", sorted(subclasses(ServeError) - {ServeError}, key=lambda c: c.__name__))
def test_every_error_survives_its_status(cls: type[ServeError]) -> None:
    error = cls.__new__(cls)
    ServeError.__init__(error, "what happened", FULL)
    back = errors.from_status(errors.to_status(error))
    assert (back.code, back.reason, back.message, back.detail) == (
        cls.code,
        cls.reason,
        "what happened",
        FULL,
    )


def test_known_reasons_come_back_as_their_own_type() -> None:
    assert type(errors.from_status(errors.to_status(WorkerLost("x")))) is WorkerLost
    assert type(errors.from_status(errors.to_status(PromptTooLong("prompt", "x")))) is PromptTooLong


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_serve_error_is_told_with_its_details(service: Service, stub: Any, streaming: bool) -> None:
    service.error = QuotaExceeded("too many", FULL)
    with pytest.raises(grpc.RpcError) as caught:
        await call(stub, streaming)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    back = errors.from_rpc_error(caught.value)
    assert isinstance(back, QuotaExceeded)
    assert back.detail == FULL


async def test_unavailable_says_when_to_come_back(service: Service, stub: Any) -> None:
    service.error = WorkerLost("gone", ErrorDetail(retry_after_s=0.25))
    with pytest.raises(grpc.RpcError) as caught:
        await stub.GetRequest(pb.GetRequestRequest())
    assert dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"] == "250"


@pytest.mark.failure("B182")
@pytest.mark.parametrize("streaming", [False, True])
async def test_any_other_exception_is_internal_with_an_id_only(
    service: Service, stub: Any, streaming: bool
) -> None:
    service.error = KeyError(CANARY)
    with structlog.testing.capture_logs() as lines, pytest.raises(grpc.RpcError) as caught:
        await call(stub, streaming)
    back = errors.from_rpc_error(caught.value)
    assert back.code is Code.INTERNAL
    assert CANARY not in str(caught.value.details()) + str(caught.value.trailing_metadata())
    [line] = [line for line in lines if line["event"] == "call_failed"]
    assert line["correlation_id"] == back.detail.metadata["correlation_id"]


async def test_an_error_that_repeats_an_endless_name_still_arrives_with_its_details(
    service: Service, stub: Any
) -> None:
    name = "模" * 100_000
    service.error = InvalidField(name, f"there is no {name}")
    service.error.detail = ErrorDetail(field=name, quota=name, metadata={"rule": name}, retry_after_s=2)
    with pytest.raises(grpc.RpcError) as caught:
        await call(stub, streaming=False)
    back = errors.from_rpc_error(caught.value)
    assert isinstance(back, InvalidField)
    assert (back.detail.field or "").startswith("模模")
    assert back.detail.retry_after_s == 2
    assert back.message.endswith("模…")


@pytest.mark.failure("B182")
@pytest.mark.parametrize("method", ["Generate", "GetRequest"])
@pytest.mark.parametrize("data", [b"\xff" * 9, b"\x0a\x03\xff\xfe\xfd"], ids=["no-message", "no-text"])
async def test_bytes_that_are_no_message_are_a_bad_field_and_tell_nothing_of_the_inside(
    raw: grpc.aio.Channel, method: str, data: bytes
) -> None:
    path = f"/protos.gateway.v1.GenerateService/{method}"
    start = raw.unary_stream if method == "Generate" else raw.unary_unary
    with pytest.raises(grpc.RpcError) as caught:
        await (start(path)(data).read() if method == "Generate" else start(path)(data))
    error = errors.from_rpc_error(caught.value)
    assert isinstance(error, InvalidField)
    assert error.detail.field == "request"
    assert "protobuf" not in str(caught.value.details())


@pytest.mark.failure("B133")
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_handler_that_cancels_itself_still_ends_with_a_status(
    service: Service, stub: Any, streaming: bool
) -> None:
    service.error = asyncio.CancelledError()
    with pytest.raises(grpc.RpcError) as caught:
        await call(stub, streaming)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.failure("B133")
@pytest.mark.parametrize(
    ("num_messages", "num_read"),
    [(0, 0), (3, 1), (1000, 0), (3, 3)],
    ids=["before", "between", "blocked-write", "after-the-last"],
)
async def test_a_cancel_reaches_the_handler_through_the_interceptor(
    service: Service, stub: Any, num_messages: int, num_read: int
) -> None:
    service.num_messages = num_messages
    call = stub.Generate(pb.GenerateRequest())
    for _ in range(num_read):
        assert (await call.read()).delta.text
    await service.started.wait()
    assert not service.released.is_set()
    call.cancel()
    async with asyncio.timeout(60):
        await service.released.wait()
    assert await call.code() is grpc.StatusCode.CANCELLED


def test_a_foreign_status_keeps_its_code_and_text() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "refused"
    )
    back = errors.from_rpc_error(error)
    assert (back.code, back.reason, back.message) == (Code.UNAVAILABLE, "UNAVAILABLE", "refused")


def test_a_call_that_a_stopping_server_never_began_may_be_made_again() -> None:
    status = grpc.aio.AioRpcError(
        grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata(), "CANCELLED"
    )
    error = errors.from_rpc_error(status)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, "CANCELLED")


def test_a_bad_field_is_a_field_violation() -> None:
    status = errors.to_status(InvalidField("sampling.top_p", "must be above 0, got 0"))
    assert any("BadRequest" in detail.type_url for detail in status.details)
    assert json.dumps(status.message)
