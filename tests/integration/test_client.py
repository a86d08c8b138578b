"""The clients against a scripted gateway on a real port."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_server
from services.client import (
    AsyncClient,
    Client,
    Delta,
    Event,
    Failed,
    Finished,
    IncompleteStream,
    Message,
    Queued,
    Receipt,
    Running,
    ServeError,
    Started,
    StillWaiting,
)
from services.domain.errors import Code, ErrorDetail, InvalidField, QuotaExceeded, UnknownRequest, WorkerLost
from services.domain.generation import FinishReason, Usage
from services.domain.miss_reason import MissReason
from tests.fakes.generate_service import (
    SCRIPT_TEXT,
    FakeGenerateService,
    delta,
    finished,
    started,
    whole_answer,
)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running fake and where it listens."""

    service: FakeGenerateService
    target: str


@dataclass(frozen=True, slots=True)
class Read:
    """What one generation gave: its events and the error that ended it."""

    events: list[Event]
    error: ServeError | None


Reader = Callable[..., Awaitable[Read]]


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    service = FakeGenerateService()
    server = create_server(interceptors=[ErrorInterceptor()])
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    yield Gateway(service, f"127.0.0.1:{port}")
    await server.stop(0)


def _read_sync(target: str, timeout_s: float | None) -> Read:
    events: list[Event] = []
    with (
        Client(target, model="m", api_key="k1") as client,
        client.generate("x", timeout_s=timeout_s) as stream,
    ):
        try:
            for event in stream:
                events.append(event)
        except ServeError as error:
            return Read(events, error)
    return Read(events, None)


async def _read_async(target: str, timeout_s: float | None) -> Read:
    events: list[Event] = []
    async with (
        AsyncClient(target, model="m", api_key="k1") as client,
        client.generate("x", timeout_s=timeout_s) as stream,
    ):
        try:
            async for event in stream:
                events.append(event)
        except ServeError as error:
            return Read(events, error)
    return Read(events, None)


@pytest.fixture(params=["sync", "async"])
def read(request: pytest.FixtureRequest, gateway: Gateway) -> Reader:
    """Read one generation to its end, with either client."""

    async def reader(timeout_s: float | None = None) -> Read:
        if request.param == "async":
            return await _read_async(gateway.target, timeout_s)
        return await asyncio.to_thread(_read_sync, gateway.target, timeout_s)

    return reader


async def test_events_come_typed_and_in_order(read: Reader) -> None:
    result = await read()
    assert result.error is None
    kinds = [type(event) for event in result.events]
    assert kinds == [Queued, StillWaiting, Started, Delta, Delta, Finished, Receipt]
    queued, end, receipt = result.events[0], result.events[5], result.events[6]
    assert isinstance(queued, Queued)
    assert queued.expected_wait_s is None
    assert isinstance(end, Finished)
    assert (end.reason, end.stop_string) == (FinishReason.STOP_STRING, "END")
    assert isinstance(receipt, Receipt)
    assert receipt.usage == Usage(prompt_tokens=20, cached_tokens=16, output_tokens=3)
    assert receipt.miss_reason is MissReason.NEVER_SEEN
    assert receipt.exact


async def test_key_and_deadline_travel_with_the_call(gateway: Gateway, read: Reader) -> None:
    await read(timeout_s=50.0)
    assert gateway.service.metadata["authorization"] == "Bearer k1"
    assert gateway.service.remaining_s is not None
    # gRPC rounds a timeout up to a coarser number on its way: 50 s arrive as 50.1.
    assert 0 < gateway.service.remaining_s <= 51.0


@pytest.mark.failure("B076")
@pytest.mark.parametrize("missing", ["receipt", "finished", "everything"])
async def test_a_stream_without_its_end_is_an_error(gateway: Gateway, read: Reader, missing: str) -> None:
    script = whole_answer()
    gateway.service.script = {
        "receipt": script[:-1],
        "finished": [*script[:-2], script[-1]],
        "everything": [],
    }[missing]
    result = await read()
    assert len(result.events) == len(gateway.service.script)
    assert isinstance(result.error, IncompleteStream)


@pytest.mark.failure("B076")
async def test_a_broken_stream_raises_the_typed_error_with_usage(gateway: Gateway, read: Reader) -> None:
    usage = Usage(prompt_tokens=20, output_tokens=2)
    gateway.service.script = [started(), delta("Hel")]
    gateway.service.error = WorkerLost("worker-0 died", ErrorDetail(usage=usage, retry_after_s=0.5))
    result = await read()
    assert [type(event) for event in result.events] == [Started, Delta]
    assert isinstance(result.error, WorkerLost)
    assert result.error.detail.usage == usage
    assert result.error.detail.retry_after_s == 0.5


async def test_a_field_error_names_its_field(gateway: Gateway, read: Reader) -> None:
    gateway.service.script, gateway.service.error = (
        [],
        InvalidField("sampling.top_p", "must be (0, 1], got 2"),
    )
    error = (await read()).error
    assert isinstance(error, InvalidField)
    assert error.detail.field == "sampling.top_p"


async def test_the_deadline_ends_a_stream_with_deadline_exceeded(gateway: Gateway, read: Reader) -> None:
    gateway.service.hold = True
    error = (await read(timeout_s=0.3)).error
    assert error is not None
    assert error.code is Code.DEADLINE_EXCEEDED


async def test_leaving_the_context_cancels_the_request(gateway: Gateway) -> None:
    gateway.service.script, gateway.service.hold = [started(), delta("a")], True
    async with AsyncClient(gateway.target, model="m") as client:
        async with client.generate("x") as stream:
            await anext(stream)
        await asyncio.wait_for(gateway.service.left.wait(), 60)
        with pytest.raises(IncompleteStream, match="cancelled here"):
            await stream.completion()


async def test_leaving_the_sync_context_cancels_the_request(gateway: Gateway) -> None:
    gateway.service.script, gateway.service.hold = [started(), delta("a")], True
    with Client(gateway.target, model="m") as client:
        with client.generate("x") as stream:
            await asyncio.to_thread(next, stream)
        await asyncio.wait_for(gateway.service.left.wait(), 60)


async def test_cancelling_the_reading_task_is_a_cancellation_and_ends_the_request(gateway: Gateway) -> None:
    gateway.service.script, gateway.service.hold = [started()], True
    async with AsyncClient(gateway.target, model="m") as client:
        running = asyncio.Event()

        async def consume() -> None:
            async with client.generate("x") as stream:
                async for _ in stream:
                    running.set()

        task = asyncio.create_task(consume())
        await asyncio.wait_for(running.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gateway.service.left.wait(), 60)


async def test_an_error_is_raised_again_by_every_further_read(gateway: Gateway) -> None:
    gateway.service.script, gateway.service.error = (
        [],
        QuotaExceeded("too many", ErrorDetail(quota="tenant/local")),
    )
    async with AsyncClient(gateway.target, model="m") as client:
        stream = client.generate("x")
        for _ in range(2):
            with pytest.raises(QuotaExceeded) as caught:
                await stream.completion()
            assert caught.value.detail.quota == "tenant/local"


async def test_whole_answers_in_one_call(gateway: Gateway) -> None:
    async with AsyncClient(gateway.target, model="m") as client:
        assert (await client.generate_text("x")).text == SCRIPT_TEXT
        history = [Message("user", "hi")]
        answer = await client.chat(history, temperature=0.0)
        assert answer.message == Message("assistant", SCRIPT_TEXT)
        assert answer.choices[0].token_ids == (7, 5)
        assert answer.receipt.worker == "worker-0"
        assert gateway.service.requests[-1].chat.messages[0].content == "hi"
        pieces = [piece async for piece in client.generate("x").text()]
        assert pieces == ["Hello, ", "wörld"]


async def test_choices_are_kept_apart(gateway: Gateway) -> None:
    script = whole_answer()
    gateway.service.script = [
        started(),
        delta("b", 1),
        delta("a", 0),
        finished(0),
        delta("B", 1),
        finished(1),
        script[-1],
    ]
    async with AsyncClient(gateway.target, model="m") as client:
        completion = await client.generate_text("x", n=2)
    assert [choice.text for choice in completion.choices] == ["a", "bB"]


async def test_unary_calls(gateway: Gateway) -> None:
    async with AsyncClient(gateway.target, model="m") as client:
        assert (await client.models())[0].max_context_tokens == 2048
        tokens = await client.tokenize("ab", return_bytes=True)
        assert (tokens.ids, tokens.token_bytes) == ((97, 98), (b"a", b"b"))
        assert (await client.tokenize([Message("user", "c")])).ids == (99,)
        assert isinstance(await client.get_request("running"), Running)
        assert isinstance(await client.get_request("r1"), Receipt)
        failed = await client.get_request("failed")
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, WorkerLost)
        with pytest.raises(UnknownRequest):
            await client.get_request("nobody's")


async def test_unary_calls_of_the_sync_client(gateway: Gateway) -> None:
    def calls() -> tuple[str, tuple[int, ...], str]:
        with Client(gateway.target, model="m") as client:
            with pytest.raises(UnknownRequest):
                client.get_request("nobody's")
            return (
                client.models()[0].name,
                client.tokenize("ab").ids,
                client.chat([Message("user", "x")]).text,
            )

    assert await asyncio.to_thread(calls) == ("m", (97, 98), SCRIPT_TEXT)


async def test_nobody_listening_is_unavailable(gateway: Gateway) -> None:
    async with AsyncClient("127.0.0.1:1", model="m") as client:
        with pytest.raises(ServeError) as caught:
            await client.models()
    assert caught.value.code is Code.UNAVAILABLE


def test_a_call_without_a_model_is_refused_at_once() -> None:
    with Client() as client, pytest.raises(InvalidField, match="model"):
        client.generate("x")


def test_the_key_is_not_shown() -> None:
    client = Client(api_key="k-secret")
    assert "k-secret" not in repr(vars(client))
    client.close()
