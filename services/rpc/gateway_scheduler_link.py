"""A gateway's stream to its scheduler: asks for places, and asks again after every reconnect.

Owns what waits: a request stays here until it is placed, rejected or abandoned. Obeys no term lower than the
highest it has seen. Knows nothing of prompts, tokens or workers.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import grpc
import structlog

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from protos.types.v1 import types_pb2
from services.chassis.gather import take_fitting
from services.chassis.stream import Outbox, keep_connected, run_duplex
from services.domain.bands import Bands
from services.domain.degradation import Step
from services.domain.errors import StaleAttempt
from services.domain.generation import Band, RequestClass
from services.domain.ids import Epoch, RequestKey, TenantId
from services.rpc import convert
from services.rpc.gateway_messages import acquire_to_pb, model_from_pb, placement_from_pb, terms_to_pb
from services.rpc.gateway_values import Acquisition, ModelState, PlacementSink, TenantTerms

MAX_QUEUED = 4096
"""Messages that may queue for the scheduler beside those of requests that waited when it was met."""
MAX_TOLD = 10_000
"""Tenants whose weight, as the scheduler was told it last, is remembered."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Waiting:
    acquisition: Acquisition
    sink: PlacementSink


class SchedulerLink:
    """The one stream to the scheduler; `run` keeps it.

    Args:
        epoch: This boot of the gateway; asked for at each connect, for it changes after waking up.
        terms: What tenants are entitled to; asked when a request begins to wait, and by `edited`.
        on_change: Called whenever the connection or what can be called has changed.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        name: str,
        epoch: Callable[[], Epoch],
        build: str,
        terms: TenantTerms,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._stub = SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        self._name = name
        self._epoch = epoch
        self._build = build
        self._terms = terms
        self._on_change = on_change
        self._waiting: dict[RequestKey, _Waiting] = {}
        self._told: dict[TenantId, float] = {}
        """What the scheduler heard from here last that tenants weigh; 0 where that may be lost. Where another
        gateway follows an edit first, what is said here against it is put right by `edited`, also once the
        request that said it is gone."""
        self._outbox: Outbox[pb.ConnectGatewayRequest] | None = None
        self._connected = False
        self.term = 0
        """Highest term seen."""
        self.models: Mapping[str, ModelState] = {}
        """Last heard; kept while the scheduler is away."""
        self.tenant_steps: dict[tuple[str, Band, TenantId], Step] = {}
        """How far tenants have climbed the ladder by themselves, by model and band; kept like the models."""
        self.bands: Bands | None = None
        """The same; None before any scheduler was heard."""

    @property
    def is_connected(self) -> bool:
        """Whether a scheduler has welcomed this gateway and its stream lives."""
        return self._connected

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def run(self) -> NoReturn:
        """Keep the stream up for ever."""
        await keep_connected("scheduler", self._session)

    def acquire(self, acquisition: Acquisition, sink: PlacementSink) -> None:
        """Ask for a place; `sink` hears of it, if need be after a reconnect."""
        acquisition = self._terms.applied(acquisition)
        self._waiting[acquisition.key] = _Waiting(acquisition, sink)
        self._send(pb.ConnectGatewayRequest(acquire=acquire_to_pb(acquisition)))
        self._tell({acquisition.tenant: acquisition.weight})

    def abandon(self, key: RequestKey, seq: int | None = None) -> None:
        """Leave the queue, or give back the placement `seq`. Idempotent."""
        if self._waiting.pop(key, None) is not None or seq is not None:
            abandon = pb.Abandon(key=convert.key_to_pb(key), seq=seq)
            self._send(pb.ConnectGatewayRequest(abandon=abandon))

    def edited(self) -> None:
        """The terms of tenants changed: the scheduler hears of it, for what waits and for what is served."""
        moved: dict[tuple[Band, RequestClass], list[RequestKey]] = {}
        for key, one in self._waiting.items():
            before, now = one.acquisition, self._terms.applied(one.acquisition)
            if (now.band, now.request_class) != (before.band, before.request_class):
                moved.setdefault((now.band, now.request_class), []).append(key)
            one.acquisition = now
        weights = self._terms.weights(self._told)
        if weights or moved:
            self._send(pb.ConnectGatewayRequest(terms=terms_to_pb(weights, moved)))
            self._tell(weights)

    def _tell(self, weights: Mapping[TenantId, float]) -> None:
        for tenant, weight in weights.items() if self._outbox is not None else ():
            self._told.pop(tenant, None)
            self._told[tenant] = weight
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]

    def _send(self, message: pb.ConnectGatewayRequest) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    async def _session(self) -> None:
        waiting = deque(acquire_to_pb(one.acquisition) for one in self._waiting.values())
        outbox: Outbox[pb.ConnectGatewayRequest] = Outbox(MAX_QUEUED + len(waiting))
        peer = convert.peer_to_pb(self._name, self._epoch(), self._build)
        # A channel takes no message of any size, and block hashes of long prompts are many.
        hello = pb.GatewayHello(peer=peer, waiting=take_fitting(waiting))
        outbox.put_nowait(pb.ConnectGatewayRequest(hello=hello))
        for acquire in waiting:
            outbox.put_nowait(pb.ConnectGatewayRequest(acquire=acquire))
        self._outbox = outbox
        self._tell({one.acquisition.tenant: one.acquisition.weight for one in self._waiting.values()})
        try:
            await run_duplex(self._stub.ConnectGateway, outbox, self._on_message, _heartbeat)
        finally:
            self._outbox, self._connected = None, False
            self._told = dict.fromkeys(self._told, 0.0)
            self._on_change()

    def _on_message(self, message: pb.ConnectGatewayResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "placement":
            self._on_placement(message.placement)
        elif kind == "queued":
            queued = message.queued
            waiting = self._waiting.get(convert.key_from_pb(queued.key))
            if waiting is not None:
                known = queued.HasField("expected_wait_ms")
                waiting.sink.on_queued(queued.position, queued.expected_wait_ms / 1000 if known else None)
        elif kind == "rejected":
            waiting = self._waiting.pop(convert.key_from_pb(message.rejected.key), None)
            if waiting is not None:
                waiting.sink.on_rejected(convert.failure_from_pb(message.rejected.failure))
        elif kind == "models":
            self.models = {model.name: model_from_pb(model) for model in message.models.models}
            self._on_change()
        elif kind == "tenant_steps":
            self._on_tenant_steps(message.tenant_steps)
        elif kind == "welcome":
            self._on_welcome(message.welcome)

    def _on_welcome(self, welcome: pb.GatewayWelcome) -> None:
        convert.check_peer(welcome.peer)
        if welcome.term < self.term:
            raise StaleAttempt(f"scheduler of term {welcome.term}, term {self.term} was seen")
        self.term = welcome.term
        self.bands = Bands(tuple(welcome.bands)) if welcome.bands else Bands()
        self.tenant_steps.clear()
        self._connected = True
        if self._outbox is not None:
            self._outbox.gathers = welcome.peer.reads_several
        self._on_change()
        self.edited()  # It may have other bands than the one before, and edits were made meanwhile.
        _log.info("scheduler_connected", term=welcome.term, num_waiting=len(self._waiting))

    def _on_tenant_steps(self, changed: pb.TenantSteps) -> None:
        for one in changed.steps:
            where = one.model, Band(one.band), TenantId(one.tenant)
            if one.step:
                self.tenant_steps[where] = Step(one.step)
            else:
                self.tenant_steps.pop(where, None)

    def _on_placement(self, placement: pb.Placement) -> None:
        key = convert.key_from_pb(placement.key)
        if placement.term < self.term:
            return
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            # It left the queue while the placement was on its way.
            self.abandon(key, placement.seq)
            return
        waiting.sink.on_placed(placement_from_pb(placement, waiting.acquisition.band))


def _heartbeat() -> pb.ConnectGatewayRequest:
    return pb.ConnectGatewayRequest(heartbeat=types_pb2.Heartbeat())
