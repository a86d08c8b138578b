"""A scheduler for the gateway's tests: places at once, or holds requests until told."""

from collections.abc import AsyncIterator

import grpc

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_server
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.domain.errors import NoWorker, ServeError
from services.domain.ids import PROTOCOL_VERSION
from services.rpc import convert
from tests.fakes.worker_server import FakeWorker


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """One term of a scheduler; `restart` begins another on the same port."""

    def __init__(self, model: pb.ModelState) -> None:
        self.models = [model]
        self.term = 1
        self.workers: list[FakeWorker] = []
        self.holds = False
        """Keep requests waiting instead of placing them."""
        self.rejects: ServeError | None = None
        self.acquired: list[pb.Acquire] = []
        self.abandoned: list[pb.Abandon] = []
        self.hellos: list[pb.GatewayHello] = []
        self.waiting: dict[tuple[str, int], pb.Acquire] = {}
        self.port = 0
        self._seq = 0
        self._server: grpc.aio.Server | None = None
        self._outbox: Outbox[pb.ConnectGatewayResponse] | None = None

    async def start(self) -> None:
        self._server = create_server(interceptors=[ErrorInterceptor()])
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, self._server)
        self.port = bind(self._server, f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            await self._server.wait_for_termination()
            self._server = None

    async def ConnectGateway(
        self, requests: AsyncIterator[pb.ConnectGatewayRequest], context: grpc.aio.ServicerContext
    ) -> None:
        hello = (await first_message(requests)).hello
        self.hellos.append(hello)
        outbox: Outbox[pb.ConnectGatewayResponse] = Outbox()
        self._outbox = outbox
        peer = types_pb2.Peer(name="scheduler", epoch=1, protocol_version=PROTOCOL_VERSION, build="fake")
        self._put(welcome=pb.GatewayWelcome(peer=peer, term=self.term))
        self.send_models()
        for acquire in hello.waiting:
            self._on_acquire(acquire)
        await serve_duplex(
            context,
            requests,
            outbox,
            self._on_message,
            lambda: pb.ConnectGatewayResponse(heartbeat=types_pb2.Heartbeat()),
        )

    def send_models(self) -> None:
        self._put(models=pb.Models(models=self.models))

    def send_step(self, tenant: str, band: "types_pb2.Band", step: "types_pb2.DegradationStep") -> None:
        """Say that a tenant stands on a step by itself."""
        one = pb.TenantStep(model=self.models[0].name, band=band, tenant=tenant, step=step)
        self._put(tenant_steps=pb.TenantSteps(steps=[one]))

    def queue(self, acquire: pb.Acquire, position: int, expected_wait_ms: int | None) -> None:
        self._put(queued=pb.Queued(key=acquire.key, position=position, expected_wait_ms=expected_wait_ms))

    def place(self, acquire: pb.Acquire, **changes: object) -> None:
        """Place a request on the first worker that it does not avoid."""
        self.waiting.pop((acquire.key.request_id, acquire.key.attempt), None)
        worker = next((one for one in self.workers if one.name not in acquire.avoid), None)
        if worker is None:
            failure = convert.failure_to_pb(NoWorker("every worker is to be avoided"))
            self._put(rejected=pb.Rejected(key=acquire.key, failure=failure))
            return
        self._seq += 1
        values: dict[str, object] = {
            "key": acquire.key,
            "worker": worker.name,
            "epoch": worker.epoch,
            "address": f"127.0.0.1:{worker.port}",
            "term": self.term,
            "seq": self._seq,
            "submit_within_ms": 60_000,
            "miss_reason": types_pb2.MISS_REASON_NEVER_SEEN,
        }
        self._put(placement=pb.Placement(**(values | changes)))

    def place_all(self) -> None:
        for acquire in list(self.waiting.values()):
            self.place(acquire)

    def _put(self, **message: object) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(pb.ConnectGatewayResponse(**message))

    def _on_message(self, message: pb.ConnectGatewayRequest) -> None:
        kind = message.WhichOneof("message")
        if kind == "acquire":
            self._on_acquire(message.acquire)
        elif kind == "abandon":
            key = message.abandon.key
            self.waiting.pop((key.request_id, key.attempt), None)
            self.abandoned.append(message.abandon)

    def _on_acquire(self, acquire: pb.Acquire) -> None:
        self.acquired.append(acquire)
        if self.rejects is not None:
            failure = convert.failure_to_pb(self.rejects)
            self._put(rejected=pb.Rejected(key=acquire.key, failure=failure))
            return
        self.waiting[(acquire.key.request_id, acquire.key.attempt)] = acquire
        if not self.holds:
            self.place(acquire)
