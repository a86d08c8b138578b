"""The scheduler's gRPC adapter: streams of gateways and workers, status, drain of one worker.

Hands messages to the dispatcher and back (`messages` reads and writes them); decides nothing.
"""

from collections.abc import AsyncIterator
from typing import cast

import grpc

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from scheduler import messages
from scheduler.core.outputs import Output
from scheduler.core.request import Acquire
from scheduler.dispatcher import Dispatcher
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.domain.errors import Draining, ErrorDetail, ServeError
from services.domain.ids import Epoch, GatewayId, WorkerId
from services.rpc import convert

MAX_TO_GATEWAY = 65_536
"""Messages that may wait for a gateway: after a restart everything it waits for is answered at once."""


class _GatewaySession:
    """Writes to one gateway."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.outbox: Outbox[pb.ConnectGatewayResponse] = Outbox(MAX_TO_GATEWAY)
        self._dispatcher = dispatcher

    def send(self, output: Output) -> None:
        self.outbox.put_nowait(messages.to_gateway(output, self._dispatcher.term))

    def close(self) -> None:
        self.outbox.close()


class _WorkerSession:
    """Writes to one worker."""

    def __init__(self) -> None:
        self.outbox: Outbox[pb.ConnectWorkerResponse] = Outbox()

    def send(self, output: Output) -> None:
        self.outbox.put_nowait(messages.to_worker(output))

    def drain(self) -> None:
        self.outbox.put_nowait(pb.ConnectWorkerResponse(drain=pb.Drain()))

    def close(self) -> None:
        self.outbox.close()


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """`scheduler.v1.SchedulerService`."""

    def __init__(self, dispatcher: Dispatcher, *, name: str, build: str) -> None:
        self._dispatcher = dispatcher
        self._name = name
        self._build = build
        self.draining = False

    async def ConnectGateway(
        self, requests: AsyncIterator[pb.ConnectGatewayRequest], context: grpc.aio.ServicerContext
    ) -> None:
        self._refuse_when_draining()
        hello = (await first_message(requests)).hello
        convert.check_peer(hello.peer)
        gateway, session = GatewayId(hello.peer.name), _GatewaySession(self._dispatcher)
        session.outbox.gathers = hello.peer.reads_several
        bands = self._dispatcher.core.rules.bands
        welcome = pb.GatewayWelcome(peer=self._peer(), term=self._dispatcher.term, bands=bands.names)
        session.outbox.put_nowait(pb.ConnectGatewayResponse(welcome=welcome))
        for one in hello.waiting:
            # They were let in while there were more of them, maybe.
            one.band = cast(types_pb2.Band, min(one.band, len(bands)))
        read = [(one, messages.read_acquire(one, len(bands))) for one in hello.waiting]
        waiting = [acquire for _, acquire in read if isinstance(acquire, Acquire)]
        self._dispatcher.connect_gateway(gateway, Epoch(hello.peer.epoch), waiting, session)
        for message, refused in read:
            if isinstance(refused, ServeError):
                session.outbox.put_nowait(messages.rejected(message.key, refused))

        def on_message(message: pb.ConnectGatewayRequest) -> None:
            self._from_gateway(gateway, message, session)

        try:
            await serve_duplex(context, requests, session.outbox, on_message, _gateway_heartbeat)
        finally:
            self._dispatcher.gateway_left(gateway, session)

    def _from_gateway(
        self, gateway: GatewayId, message: pb.ConnectGatewayRequest, session: _GatewaySession
    ) -> None:
        kind = message.WhichOneof("message")
        if kind == "acquire":
            acquire = messages.read_acquire(message.acquire, len(self._dispatcher.core.rules.bands))
            if isinstance(acquire, ServeError):
                session.outbox.put_nowait(messages.rejected(message.acquire.key, acquire))
            else:
                self._dispatcher.acquire(gateway, acquire, session)
        elif kind == "abandon":
            abandon = message.abandon
            seq = abandon.seq if abandon.HasField("seq") else None
            self._dispatcher.abandon(gateway, convert.key_from_pb(abandon.key), seq, session)
        elif kind == "terms":
            terms = messages.read_terms(message.terms, len(self._dispatcher.core.rules.bands))
            self._dispatcher.edited(gateway, terms, session)

    async def ConnectWorker(
        self, requests: AsyncIterator[pb.ConnectWorkerRequest], context: grpc.aio.ServicerContext
    ) -> None:
        self._refuse_when_draining()
        hello = messages.worker_hello((await first_message(requests)).hello)
        session = _WorkerSession()
        welcome = pb.WorkerWelcome(
            peer=self._peer(),
            term=self._dispatcher.term,
            submit_within_ms=round(self._dispatcher.core.rules.submit_within_s * 1000),
        )
        session.outbox.put_nowait(pb.ConnectWorkerResponse(welcome=welcome))
        self._dispatcher.connect_worker(hello, session)

        def on_message(message: pb.ConnectWorkerRequest) -> None:
            if message.WhichOneof("message") == "report":
                self._dispatcher.report(hello.worker, messages.report(message.report), session)

        try:
            await serve_duplex(context, requests, session.outbox, on_message, _worker_heartbeat)
        finally:
            self._dispatcher.worker_left(hello.worker, session)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        core, now = self._dispatcher.core, self._dispatcher.now()
        oldest = min(core.room.oldest().values(), default=None)
        return pb.GetStatusResponse(
            term=self._dispatcher.term,
            waiting=len(core.room),
            waiting_tokens=core.room.num_tokens,
            oldest_wait_ms=0 if oldest is None else round((now - oldest) * 1000),
            workers=self._worker_states(now),
            gateways=[
                pb.GatewayState(name=name, epoch=epoch, waiting=core.room.num_of_gateway(name))
                for name, (epoch, _) in self._dispatcher.gateways.items()
            ],
            placed_total=core.num_placed,
            rejected_total=core.num_rejected,
            models=messages.models(core.fleet.models()),
            bands=core.rules.bands.names,
            queues=[
                pb.BandQueue(
                    band=cast(types_pb2.Band, band),
                    request_class=cast(types_pb2.RequestClass, kind.value),
                    model=model,
                    waiting=count,
                )
                for (band, kind, model), count in sorted(core.room.sizes.items())
            ],
            quarantine=[
                pb.QuarantinedPrompt(
                    digest=held.digest,
                    num_workers=held.num_workers,
                    left_ms=round((held.until - now) * 1000),
                )
                for held in core.faults.quarantine.entries(now)
            ],
            tenants=messages.tenants(core.room.tenants) if request.tenants else (),
            tenant_steps=messages.tenant_steps(core.ladder.tenants()),
        )

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrainWorkerResponse:
        return pb.DrainWorkerResponse(live=self._dispatcher.drain_worker(WorkerId(request.worker)))

    async def ReleaseQuarantine(
        self, request: pb.ReleaseQuarantineRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReleaseQuarantineResponse:
        return pb.ReleaseQuarantineResponse(num_released=self._dispatcher.release(request.digest))

    def _worker_states(self, now: float) -> list[pb.WorkerState]:
        breakers = self._dispatcher.core.faults.breakers
        return [
            pb.WorkerState(
                name=name,
                epoch=worker.hello.epoch,
                address=worker.hello.address,
                model=worker.hello.model,
                draining=worker.draining,
                placed=worker.placed,
                granted=worker.report.granted,
                running=worker.report.running,
                waiting=worker.report.waiting,
                total_pages=worker.hello.capacity.total_pages,
                free_pages=worker.report.free_pages,
                reclaimable_pages=worker.report.reclaimable_pages,
                last_seen_ms=round((now - worker.last_seen) * 1000),
                **messages.breaker_state(breakers.get(name), now),
            )
            for name, worker in self._dispatcher.core.fleet.workers.items()
        ]

    def _peer(self) -> types_pb2.Peer:
        return convert.peer_to_pb(self._name, self._dispatcher.term, self._build)

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise Draining("the scheduler is shutting down", ErrorDetail(retry_after_s=0.5))


def _gateway_heartbeat() -> pb.ConnectGatewayResponse:
    return pb.ConnectGatewayResponse(heartbeat=types_pb2.Heartbeat())


def _worker_heartbeat() -> pb.ConnectWorkerResponse:
    return pb.ConnectWorkerResponse(heartbeat=types_pb2.Heartbeat())
