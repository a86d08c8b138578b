"""The scheduler's gRPC adapter: streams of gateways and workers, status, drain of one worker.

Turns messages into the core's values and back; decides nothing.
"""

from collections.abc import AsyncIterator
from typing import cast

import grpc

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from protos.types.v1 import types_pb2
from scheduler.core.credits import Report, WorkerHello
from scheduler.core.outputs import ModelsChanged, Output, Placed, PlacementsMade, Queued, Rejected
from scheduler.core.request import Acquire, PromptUse
from scheduler.dispatcher import Dispatcher
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.domain.block_hash import DIGEST_BYTES
from services.domain.capacity import Capacity
from services.domain.errors import Draining, ErrorDetail, InvalidField, ServeError
from services.domain.generation import MAX_CHOICES, Band, RequestClass
from services.domain.ids import BlockHash, Epoch, GatewayId, Namespace, TenantId, WorkerId
from services.rpc import convert

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6
"""Bounds of a tenant's weight."""

MAX_TO_GATEWAY = 65_536
"""Messages that may wait for a gateway: after a restart everything it waits for is answered at once."""


class _GatewaySession:
    """Writes to one gateway."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.outbox: Outbox[pb.ConnectGatewayResponse] = Outbox(MAX_TO_GATEWAY)
        self._dispatcher = dispatcher

    def send(self, output: Output) -> None:
        self.outbox.put_nowait(_to_gateway(output, self._dispatcher.term))

    def close(self) -> None:
        self.outbox.close()


class _WorkerSession:
    """Writes to one worker."""

    def __init__(self) -> None:
        self.outbox: Outbox[pb.ConnectWorkerResponse] = Outbox()

    def send(self, output: Output) -> None:
        assert isinstance(output, PlacementsMade), "workers hear of placements only"
        placed = pb.Placed(highest_seq=output.highest_seq, abandoned=output.abandoned)
        self.outbox.put_nowait(pb.ConnectWorkerResponse(placed=placed))

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
        welcome = pb.GatewayWelcome(peer=self._peer(), term=self._dispatcher.term)
        session.outbox.put_nowait(pb.ConnectGatewayResponse(welcome=welcome))
        read = [(one, _read_acquire(one)) for one in hello.waiting]
        waiting = [acquire for _, acquire in read if isinstance(acquire, Acquire)]
        self._dispatcher.connect_gateway(gateway, Epoch(hello.peer.epoch), waiting, session)
        for message, refused in read:
            if isinstance(refused, ServeError):
                session.outbox.put_nowait(_rejected(message.key, refused))

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
            acquire = _read_acquire(message.acquire)
            if isinstance(acquire, ServeError):
                session.outbox.put_nowait(_rejected(message.acquire.key, acquire))
            else:
                self._dispatcher.acquire(gateway, acquire, session)
        elif kind == "abandon":
            abandon = message.abandon
            seq = abandon.seq if abandon.HasField("seq") else None
            self._dispatcher.abandon(gateway, convert.key_from_pb(abandon.key), seq, session)

    async def ConnectWorker(
        self, requests: AsyncIterator[pb.ConnectWorkerRequest], context: grpc.aio.ServicerContext
    ) -> None:
        self._refuse_when_draining()
        hello = _worker_hello((await first_message(requests)).hello)
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
                self._dispatcher.report(hello.worker, _report(message.report), session)

        try:
            await serve_duplex(context, requests, session.outbox, on_message, _worker_heartbeat)
        finally:
            self._dispatcher.worker_left(hello.worker, session)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        core, now = self._dispatcher.core, self._dispatcher.now()
        oldest = core.room.oldest()
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
            queues=[
                pb.BandQueue(
                    band=cast(types_pb2.Band, band.value),
                    request_class=cast(types_pb2.RequestClass, kind.value),
                    model=model,
                    waiting=count,
                )
                for (band, kind, model), count in sorted(core.room.sizes.items())
            ],
        )

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrainWorkerResponse:
        return pb.DrainWorkerResponse(live=self._dispatcher.drain_worker(WorkerId(request.worker)))

    def _worker_states(self, now: float) -> list[pb.WorkerState]:
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
            )
            for name, worker in self._dispatcher.core.fleet.workers.items()
        ]

    def _peer(self) -> types_pb2.Peer:
        return convert.peer_to_pb(self._name, self._dispatcher.term, self._build)

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise Draining("the scheduler is shutting down", ErrorDetail(retry_after_s=0.5))


def _read_acquire(message: pb.Acquire) -> Acquire | ServeError:
    """Return what a gateway asks for, or why that is no request."""
    try:
        band, kind = Band(message.band), RequestClass(message.request_class)
    except ValueError:
        return InvalidField("band", f"no such band or class: {message.band}, {message.request_class}")
    if not message.key.request_id or message.key.attempt < 1:
        return InvalidField("key", "request id and attempt must be set")
    if message.num_prompt_tokens < 1:
        return InvalidField("num_prompt_tokens", "must be at least 1")
    if not 1 <= message.n <= MAX_CHOICES:
        return InvalidField("n", f"must be 1 to {MAX_CHOICES}, got {message.n}")
    weight = message.weight or 1.0
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        return InvalidField("weight", f"must be {MIN_WEIGHT} to {MAX_WEIGHT}, got {weight}")
    if any(len(one) != DIGEST_BYTES for one in message.block_hashes):
        return InvalidField("block_hashes", f"each must have {DIGEST_BYTES} bytes")
    return Acquire(
        key=convert.key_from_pb(message.key),
        tenant=TenantId(message.tenant),
        band=band,
        request_class=kind,
        model=message.model,
        num_prompt_tokens=message.num_prompt_tokens,
        max_output_tokens=message.max_output_tokens,
        num_choices=message.n,
        block_hashes=tuple(BlockHash(one) for one in message.block_hashes),
        limits=convert.limits_from_pb(message.limits),
        waited_s=message.waited_ms / 1000,
        avoid=frozenset(WorkerId(name) for name in message.avoid),
        own_salt=message.own_salt,
        cache_opt_out=message.cache_opt_out,
        traceparent=message.traceparent,
        weight=weight,
    )


def _worker_hello(message: pb.WorkerHello) -> WorkerHello:
    convert.check_peer(message.peer)
    return WorkerHello(
        worker=WorkerId(message.peer.name),
        epoch=Epoch(message.peer.epoch),
        address=message.address,
        model=message.model,
        revision=message.revision,
        namespace=Namespace(message.namespace),
        capacity=Capacity(
            max_context_tokens=message.max_context_tokens,
            total_pages=message.total_pages,
            page_size=max(1, message.page_size),
            max_sequences=message.max_sequences,
        ),
        max_step_tokens=message.max_step_tokens,
        live=tuple(convert.key_from_pb(key) for key in message.live),
        draining=message.draining,
    )


def _report(message: pb.Report) -> Report:
    prompts = {
        convert.key_from_pb(one.key): PromptUse(one.uncached_tokens, one.cached_tokens)
        for one in message.ended
    }
    return Report(
        seq=message.seq,
        placements_seen=message.placements_seen,
        granted=message.granted,
        startable_pages=message.startable_pages,
        free_pages=message.free_pages,
        reclaimable_pages=message.reclaimable_pages,
        waiting_tokens=message.waiting_tokens,
        running=message.running,
        waiting=message.waiting,
        started=tuple(convert.key_from_pb(key) for key in message.started),
        ended=tuple(prompts),
        prompts=prompts,
        output_tokens={TenantId(use.tenant): use.output_tokens for use in message.tenant_use},
        at_slice=frozenset(TenantId(tenant) for tenant in message.at_slice),
        draining=message.draining,
    )


def _to_gateway(output: Output, term: int) -> pb.ConnectGatewayResponse:
    if isinstance(output, Placed):
        return pb.ConnectGatewayResponse(placement=_placement(output, term))
    if isinstance(output, Rejected):
        return _rejected(convert.key_to_pb(output.acquire.key), output.error)
    if isinstance(output, Queued):
        wait_s = output.expected_wait_s
        queued = pb.Queued(
            key=convert.key_to_pb(output.key),
            position=output.position,
            expected_wait_ms=None if wait_s is None else round(wait_s * 1000),
        )
        return pb.ConnectGatewayResponse(queued=queued)
    assert isinstance(output, ModelsChanged), "nothing else is for gateways"
    return pb.ConnectGatewayResponse(models=_models(output))


def _rejected(key: types_pb2.RequestKey, error: ServeError) -> pb.ConnectGatewayResponse:
    return pb.ConnectGatewayResponse(rejected=pb.Rejected(key=key, failure=convert.failure_to_pb(error)))


def _placement(output: Placed, term: int) -> pb.Placement:
    return pb.Placement(
        key=convert.key_to_pb(output.acquire.key),
        worker=output.worker,
        epoch=output.epoch,
        address=output.address,
        term=term,
        seq=output.seq,
        submit_within_ms=round(output.submit_within_s * 1000),
        cached_tokens=output.cached_tokens,
        miss_reason=convert.miss_reason_to_pb(output.miss_reason),
        first_miss_token=output.first_miss_token,
    )


def _models(changed: ModelsChanged) -> pb.Models:
    return pb.Models(
        models=[
            pb.ModelState(
                name=model.name,
                revision=model.revision,
                max_context_tokens=model.max_context_tokens,
                num_workers=model.num_workers,
                max_pages=model.max_pages,
                page_size=model.page_size,
                max_sequences=model.max_sequences,
            )
            for model in changed.models
        ]
    )


def _gateway_heartbeat() -> pb.ConnectGatewayResponse:
    return pb.ConnectGatewayResponse(heartbeat=types_pb2.Heartbeat())


def _worker_heartbeat() -> pb.ConnectWorkerResponse:
    return pb.ConnectWorkerResponse(heartbeat=types_pb2.Heartbeat())
