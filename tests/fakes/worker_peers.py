"""A scheduler and a kvmanager that a test scripts by hand, for a worker to talk to over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from protos.kvmanager.v1 import kvmanager_pb2 as kv
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2 as sched
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.grpc import bind, create_server
from services.chassis.stream import Outbox, serve_duplex
from services.domain.ids import Epoch
from services.rpc import convert


class Script:
    """One scripted server: keeps what the worker says, on every stream anew."""

    def __init__(self) -> None:
        self.port = 0
        self.term = 1
        self.epoch = Epoch(77)
        self.outbox: Outbox | None = None
        self.hellos: list = []
        self.messages: list = []
        """Of the stream of now."""
        self._changed = asyncio.Event()
        self._server = None

    async def start(self) -> None:
        self._server = create_server()
        self._add(self._server)
        self.port = bind(self._server, f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def wait_for(self, what: Callable[[], object], limit_s: float = 60.0) -> None:
        async with asyncio.timeout(limit_s):
            while not what():
                self._changed.clear()
                await self._changed.wait()

    async def ConnectWorker(self, requests: AsyncIterator, context: object) -> None:
        self.outbox, self.messages = Outbox(), []
        for message in self._welcome(convert.peer_to_pb("script", self.epoch, "test")):
            self.outbox.put_nowait(message)
        await serve_duplex(context, requests, self.outbox, self._take, self._heartbeat)

    def _take(self, message: object) -> None:
        if message.WhichOneof("message") == "hello":
            self.hellos.append(message.hello)
        else:
            self.messages.append(message)
        self._changed.set()

    def send(self, **message: object) -> None:
        self.outbox.put_nowait(self._response(**message))

    def _heartbeat(self) -> object:
        return self._response(heartbeat=types_pb2.Heartbeat())


class ScriptedScheduler(Script, scheduler_pb2_grpc.SchedulerServiceServicer):
    _response = sched.ConnectWorkerResponse
    submit_within_ms = 60_000

    def _add(self, server: object) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server)

    def _welcome(self, peer: types_pb2.Peer) -> list[sched.ConnectWorkerResponse]:
        welcome = sched.WorkerWelcome(peer=peer, term=self.term, submit_within_ms=self.submit_within_ms)
        return [self._response(welcome=welcome)]

    @property
    def reports(self) -> list[sched.Report]:
        return [message.report for message in self.messages if message.HasField("report")]

    @property
    def last(self) -> sched.Report:
        return self.reports[-1] if self.reports else sched.Report()

    @property
    def granted_and_seen(self) -> tuple[int, int]:
        return self.last.granted, self.last.placements_seen

    def gathered(self, field: str) -> list[str]:
        return [
            (one if field == "started" else one.key).request_id
            for report in self.reports
            for one in getattr(report, field)
        ]


class ScriptedKvManager(Script, kvmanager_pb2_grpc.KvManagerServiceServicer):
    _response = kv.ConnectWorkerResponse
    version = 0

    def _add(self, server: object) -> None:
        kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(self, server)

    def _welcome(self, peer: types_pb2.Peer) -> list[kv.ConnectWorkerResponse]:
        self.version += 1
        slices = kv.Slices(version=self.version)
        return [self._response(welcome=kv.WorkerWelcome(peer=peer)), self._response(slices=slices)]

    def give(self, tenant: str, pages: int, cap: int) -> None:
        """Push one tenant's slice."""
        self.version += 1
        one = kv.Slice(tenant=tenant, max_pages=pages, cap=cap)
        self.send(slices=kv.Slices(version=self.version, slices=[one]))

    @property
    def in_force(self) -> list[kv.SlicesInForce]:
        return [message.slices for message in self.messages if message.HasField("slices")]

    @property
    def snapshots(self) -> list[kv.Snapshot]:
        return [message.snapshot for message in self.messages if message.HasField("snapshot")]

    @property
    def events(self) -> list[kv.Events]:
        return [message.events for message in self.messages if message.HasField("events")]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    await script.start()
    try:
        yield f"127.0.0.1:{script.port}"
    finally:
        await script.stop()
