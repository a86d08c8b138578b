"""gRPC adapter of the worker: one duplex stream per gateway, and a status for people and tools.

Reads messages, refuses what is stale, and hands the rest to the engine; holds no policy of its own.
"""

import time
from collections.abc import AsyncIterator
from functools import partial

import grpc

from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.domain.errors import InvalidField, NoWorker, ServeError, StaleAttempt
from services.domain.ids import Epoch, GatewayId
from services.rpc import convert
from services.rpc.worker_facts import WorkerFacts
from worker.async_engine import AsyncEngine
from worker.engine.outputs import StepOutputs
from worker.executors.base import ModelProfile
from worker.gateway_step import GatewayStep, SessionId, handle_in
from worker.gateways import MAX_UNCONFIRMED, Gateways, GatewaySession
from worker.messages import step_to_pb, submit_from_pb
from worker.placements import PlacementBook

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name

Session = GatewaySession[pb.ConnectResponse]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`worker.v1.WorkerService`."""

    def __init__(
        self, engine: AsyncEngine, facts: WorkerFacts, profile: ModelProfile, book: PlacementBook
    ) -> None:
        self._engine = engine
        self._facts = facts
        self._profile = profile
        self._book = book
        self.gateways: Gateways[pb.ConnectResponse] = Gateways(engine, _numbered)
        self._totals = _Totals()
        engine.listen(self._totals.on_step)

    async def Connect(
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Serve one gateway's stream; its requests outlive the connection for a moment."""
        session, outbox = self._enter(await first_message(request_iterator))
        on_message = partial(self._on_message, session)
        try:
            await serve_duplex(context, request_iterator, outbox, on_message, _heartbeat)
        except InvalidField:
            self.gateways.drop(session, "broke_the_protocol")
            raise
        finally:
            session.detach(outbox, time.monotonic())

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        """Say what the worker is and does now."""
        response = pb.GetStatusResponse(
            name=self._facts.name,
            epoch=self._facts.epoch,
            model=self._profile.model,
            revision=self._profile.revision,
            executor=self._profile.executor,
            total_pages=self._facts.capacity.total_pages,
            prefill_tokens=self._totals.prefill_tokens,
            decode_tokens=self._totals.decode_tokens,
            cached_tokens=self._totals.cached_tokens,
            preemptions=self._totals.preemptions,
            stuck_ms=round(self._engine.stuck_s() * 1000),
        )
        stats = self._engine.last
        if stats is not None:
            response.steps, response.running, response.waiting = stats.step, stats.running, stats.waiting
            response.free_pages, response.cached_pages = stats.free_pages, stats.cached_pages
            response.held_pages, response.draining = stats.held_pages, stats.draining
        return response

    def _enter(self, first: pb.ConnectRequest) -> tuple[Session, Outbox[pb.ConnectResponse]]:
        if first.WhichOneof("message") != "hello":
            raise InvalidField("hello", "must be the first message on the stream")
        hello = first.hello
        convert.check_peer(hello.peer)
        received = hello.received if hello.worker_epoch == self._facts.epoch else None
        session, resumed = self.gateways.enter(GatewayId(hello.peer.name), Epoch(hello.peer.epoch), received)
        outbox: Outbox[pb.ConnectResponse] = Outbox(2 * MAX_UNCONFIRMED)
        welcome = pb.WorkerWelcome(peer=self._facts.peer(), resumed=resumed)
        outbox.put_nowait(pb.ConnectResponse(welcome=welcome))
        for message in session.buffer.after(hello.received if resumed else 0):
            outbox.put_nowait(message)
        session.attach(outbox, time.monotonic())
        return session, outbox

    def _on_message(self, session: Session, message: pb.ConnectRequest) -> None:
        if not self.gateways.is_current(session):
            raise StaleAttempt("this stream's session is over")
        session.heard_at = time.monotonic()
        match message.WhichOneof("message"):
            case "submit":
                self._submit(session.id, message.submit)
            case "cancel":
                self._engine.cancel(handle_in(session.id, message.cancel.handle))
            case "finish_choice":
                self._finish_choice(session.id, message.finish_choice)
            case "received":
                session.buffer.confirm(message.received.position)
            case "hello":
                raise InvalidField("hello", "may only be the first message on the stream")

    def _submit(self, session: SessionId, message: pb.Submit) -> None:
        """Give a request to the engine, or tell the gateway why not. A bad one fails alone."""
        handle, key = handle_in(session, message.handle), convert.key_from_pb(message.key)
        if self._engine.uses(handle) not in (None, key):
            raise InvalidField("submit.handle", f"{message.handle} is in use on this stream")
        now = time.monotonic()
        attaches = self._engine.is_live(key)
        try:
            if message.epoch != self._facts.epoch:
                raise StaleAttempt(f"placed on boot {message.epoch}, this is {self._facts.epoch}")
            if not attaches:
                self._book.check_submit(key, message.term, message.seq)
        except ServeError as error:
            self._engine.refuse(handle, key, error)
            return
        try:
            submit = submit_from_pb(message, key, handle)
        except ServeError as error:
            self._book.unused(message.term, message.seq, now)
            self._engine.refuse(handle, key, error)
            return
        if attaches:
            self._book.unused(message.term, message.seq, now)
        else:
            self._book.submitted(key, message.term, message.seq, now)
        self._engine.submit(submit, message.traceparent)

    def _finish_choice(self, session: SessionId, message: pb.FinishChoice) -> None:
        try:
            reason = convert.finish_from_pb(message.reason)
        except KeyError as exc:
            raise InvalidField("finish_choice.reason", f"is unknown: {message.reason}") from exc
        self._engine.finish_choice(handle_in(session, message.handle), message.choice, reason)


class EarlyServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Stands in while the model loads, so that health and reflection answer from the first moment on."""

    def __init__(self) -> None:
        self._ready: WorkerServicer | None = None

    def open(self, servicer: WorkerServicer) -> None:
        """Pass all calls on to `servicer` from now on."""
        self._ready = servicer

    async def Connect(
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: grpc.aio.ServicerContext
    ) -> None:
        await self._servicer.Connect(request_iterator, context)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        return await self._servicer.GetStatus(request, context)

    @property
    def _servicer(self) -> WorkerServicer:
        if self._ready is None:
            raise NoWorker("the worker is loading its model")
        return self._ready


class _Totals:
    """Counts over the worker's life that a single step does not carry."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.cached_tokens = 0
        self.preemptions = 0

    def on_step(self, outputs: StepOutputs) -> None:
        stats = outputs.stats
        self.prefill_tokens += stats.num_prefill_tokens
        self.decode_tokens += stats.num_decode_tokens
        self.cached_tokens += stats.prefix_tokens.get("hit", 0)
        self.preemptions += stats.preemptions


def _numbered(position: int, step: GatewayStep) -> pb.ConnectResponse:
    return pb.ConnectResponse(position=position, step=step_to_pb(step))


def _heartbeat() -> pb.ConnectResponse:
    message = pb.ConnectResponse()
    message.heartbeat.SetInParent()
    return message
