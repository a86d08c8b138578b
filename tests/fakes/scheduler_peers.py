"""Peers of a scheduler over real gRPC: a gateway, a worker and a kvmanager that do as they are told."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Self

import grpc

from protos.kvmanager.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.gather import each
from services.chassis.stream import Outbox
from services.domain.ids import Epoch
from services.rpc.convert import peer_to_pb

LIMIT_S = 60.0


def pb_acquire(request_id: str, *, attempt: int = 1, tokens: int = 32, **fields: Any) -> pb.Acquire:
    values: dict[str, Any] = {
        "tenant": "local",
        "band": types_pb2.BAND_STANDARD,
        "request_class": types_pb2.REQUEST_CLASS_SHORT,
        "model": "m",
        "num_prompt_tokens": tokens,
        "max_output_tokens": 16,
        "n": 1,
    } | fields
    return pb.Acquire(key=types_pb2.RequestKey(request_id=request_id, attempt=attempt), **values)


class _Peer:
    """One duplex stream to a scheduler; keeps what it hears by kind."""

    def __init__(self, channel: grpc.aio.Channel, name: str, epoch: int) -> None:
        self.stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self.name = name
        self.epoch = epoch
        self.outbox: Outbox[Any] = Outbox()
        self.heard: defaultdict[str, list[Any]] = defaultdict(list)
        self.error: grpc.aio.AioRpcError | None = None
        self._changed = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None
        self._stream: Any = None

    def peer(self) -> types_pb2.Peer:
        return peer_to_pb(self.name, Epoch(self.epoch), "test")

    async def open(self, method: Any, hello: Any) -> Self:
        self.outbox.put_nowait(hello)
        self._stream = method(self.outbox)
        self._reader = asyncio.create_task(self._read())
        return self

    async def until(self, done: Callable[[Self], bool]) -> None:
        """Wait until what was heard satisfies `done`."""
        async with asyncio.timeout(LIMIT_S), self._changed:
            await self._changed.wait_for(lambda: done(self))

    async def ended(self) -> None:
        """Wait for the scheduler to end the stream."""
        assert self._reader is not None
        async with asyncio.timeout(LIMIT_S):
            await asyncio.shield(self._reader)

    async def leave(self) -> None:
        """Break the stream."""
        self._stream.cancel()
        assert self._reader is not None
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for message in self._stream:
                async with self._changed:
                    for one in each(message):
                        kind = one.WhichOneof("message")
                        self.heard[kind].append(getattr(one, kind))
                        self.on_message(kind, getattr(one, kind))
                    self._changed.notify_all()
        except grpc.aio.AioRpcError as error:
            self.error = error

    def on_message(self, kind: str, message: Any) -> None:
        """Answer a heartbeat."""
        if kind == "heartbeat":
            self.heartbeat()

    def heartbeat(self) -> None:
        raise NotImplementedError


class FakeGateway(_Peer):
    def __init__(self, channel: grpc.aio.Channel, name: str = "gateway-0", epoch: int = 1) -> None:
        super().__init__(channel, name, epoch)
        self.answering = True

    async def connect(self, waiting: Iterable[pb.Acquire] = ()) -> Self:
        hello = pb.GatewayHello(peer=self.peer(), waiting=waiting)
        return await self.open(self.stub.ConnectGateway, pb.ConnectGatewayRequest(hello=hello))

    def acquire(self, acquire: pb.Acquire) -> None:
        self.outbox.put_nowait(pb.ConnectGatewayRequest(acquire=acquire))

    def abandon(self, key: types_pb2.RequestKey, seq: int | None = None) -> None:
        self.outbox.put_nowait(pb.ConnectGatewayRequest(abandon=pb.Abandon(key=key, seq=seq)))

    def on_message(self, kind: str, message: Any) -> None:
        super().on_message(kind, message)
        if kind == "welcome":
            self.outbox.gathers = message.peer.reads_several

    def heartbeat(self) -> None:
        if self.answering:
            self.outbox.put_nowait(pb.ConnectGatewayRequest(heartbeat=types_pb2.Heartbeat()))


class FakeWorker(_Peer):
    """Grants what it is told to grant; `auto` starts and ends every placement at once."""

    def __init__(
        self, channel: grpc.aio.Channel, name: str = "worker-0", epoch: int = 1, *, model: str = "m"
    ) -> None:
        super().__init__(channel, name, epoch)
        self.model = model
        self.granted = 0
        self.seen = 0
        self.auto = False
        self._seq = 0

    async def connect(self, granted: int = 0, **fields: Any) -> Self:
        values: dict[str, Any] = {
            "address": "127.0.0.1:1",
            "model": self.model,
            "revision": "r1",
            "namespace": f"ns-{self.model}",
            "max_context_tokens": 4096,
            "total_pages": 64,
            "page_size": 16,
            "max_sequences": 32,
            "max_step_tokens": 512,
        } | fields
        hello = pb.WorkerHello(peer=self.peer(), **values)
        await self.open(self.stub.ConnectWorker, pb.ConnectWorkerRequest(hello=hello))
        await self.until(lambda worker: bool(worker.heard["welcome"]))
        self.report(granted=granted)
        await self._is_known(granted)
        return self

    async def _is_known(self, granted: int) -> None:
        """Wait until the scheduler counts the grants: no other stream's message overtakes them."""
        async with asyncio.timeout(LIMIT_S):
            while granted:
                status = await self.stub.GetStatus(pb.GetStatusRequest())
                if any(one.name == self.name and one.granted >= granted for one in status.workers):
                    return
                await asyncio.sleep(0.005)

    def report(self, *, granted: int | None = None, seen: int | None = None, **fields: Any) -> None:
        self.granted = self.granted if granted is None else granted
        self.seen = self.seen if seen is None else seen
        self._seq += 1
        values: dict[str, Any] = {"startable_pages": 64, "free_pages": 64} | fields
        report = pb.Report(seq=self._seq, granted=self.granted, placements_seen=self.seen, **values)
        self.outbox.put_nowait(pb.ConnectWorkerRequest(report=report))

    def on_message(self, kind: str, message: Any) -> None:
        super().on_message(kind, message)
        if kind == "placed" and self.auto and message.highest_seq > self.seen:
            self.report(granted=message.highest_seq + 2, seen=message.highest_seq)

    def heartbeat(self) -> None:
        self.outbox.put_nowait(pb.ConnectWorkerRequest(heartbeat=types_pb2.Heartbeat()))


class FakeKvManager(kvmanager_pb2_grpc.KvManagerServiceServicer):
    """Answers every question with the same matches, or never."""

    def __init__(self, matches: dict[str, int]) -> None:
        self.matches = matches
        self.answering = True
        self.questions: list[kvmanager_pb2.MatchQuery] = []

    async def Match(
        self, requests: AsyncIterator[kvmanager_pb2.MatchRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[kvmanager_pb2.MatchResponse]:
        async for request in requests:
            for one in each(request):
                for answer in self._answers(one):
                    yield answer

    def _answers(self, request: kvmanager_pb2.MatchRequest) -> Iterator[kvmanager_pb2.MatchResponse]:
        kind = request.WhichOneof("message")
        if kind == "hello":
            yield kvmanager_pb2.MatchResponse(welcome=peer_to_pb("kvmanager", Epoch(1), "test"))
            yield kvmanager_pb2.MatchResponse(caps=kvmanager_pb2.Caps(max_pages={"capped": 4}))
        elif kind == "heartbeat":
            yield kvmanager_pb2.MatchResponse(heartbeat=types_pb2.Heartbeat())
        else:
            self.questions.append(request.query)
            if self.answering:
                yield kvmanager_pb2.MatchResponse(answer=self._answer(request.query.id))

    def _answer(self, query_id: int) -> kvmanager_pb2.MatchAnswer:
        matches = [
            kvmanager_pb2.WorkerMatch(worker=name, epoch=1, tokens=tokens)
            for name, tokens in self.matches.items()
        ]
        return kvmanager_pb2.MatchAnswer(
            id=query_id,
            matches=matches,
            miss_reason=types_pb2.MISS_REASON_FIRST_DIFFERENCE,
            first_miss_token=max(self.matches.values()),
        )
