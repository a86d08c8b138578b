"""The gRPC adapter of the kvmanager: streams of workers and schedulers, and the status call.

Turns messages into values and back; decides nothing.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import grpc
import structlog

from kvmanager.core.eviction_policy import EvictionOrder, EvictionPolicy
from kvmanager.core.prefix_index import WorkerKey
from kvmanager.manager import Manager
from kvmanager.messages import CacheChange, Query, SnapshotPart
from protos.kvmanager.v1 import kvmanager_pb2 as pb
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.chassis.telemetry import span
from services.domain.block_hash import BLOCK_SIZE
from services.domain.errors import Draining, InvalidField
from services.domain.ids import Epoch, Namespace, TenantId, WorkerId
from services.domain.miss_reason import MissReason
from services.rpc.convert import check_peer, hashes_from_pb, miss_reason_to_pb, peer_to_pb
from services.rpc.slices import slices_from_pb

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["KvManagerService"].full_name

_REMOVAL_REASONS = {pb.REMOVAL_REASON_POLICY: MissReason.EVICTED_BY_POLICY}
_EVICTION_ORDERS = {EvictionOrder.LRU: pb.EVICTION_ORDER_LRU}
Message = TypeVar("Message", pb.ConnectWorkerRequest, pb.MatchRequest)

_log = structlog.get_logger()


class KvManagerService(kvmanager_pb2_grpc.KvManagerServiceServicer):
    """Serves one manager.

    Args:
        epoch: Names this boot in every welcome; it changes when a stopped process wakes up.
    """

    def __init__(self, manager: Manager, name: str, epoch: Callable[[], Epoch], build: str) -> None:
        self._manager = manager
        self._name = name
        self._epoch = epoch
        self._build = build
        self._outboxes: set[Outbox[Any]] = set()
        self._schedulers: set[Outbox[pb.MatchResponse]] = set()
        self._draining = False

    def drain(self) -> None:
        """Refuse new streams and end the open ones; peers look for another kvmanager, or this one again."""
        self._draining = True
        for outbox in self._outboxes:
            outbox.close()

    def tell_caps(self) -> None:
        """Tell every scheduler the caps as they are now."""
        for outbox in self._schedulers:
            outbox.put_nowait(self._caps())

    async def ConnectWorker(
        self, requests: AsyncIterator[pb.ConnectWorkerRequest], context: grpc.aio.ServicerContext
    ) -> None:
        first = await self._first_message(requests)
        peer = first.hello.peer
        check_peer(peer)
        worker = WorkerId(peer.name)
        key = WorkerKey(worker, Epoch(peer.epoch), Namespace(first.hello.namespace))
        link = _GrpcLink()
        link.outbox.put_nowait(pb.ConnectWorkerResponse(welcome=pb.WorkerWelcome(peer=self._peer())))
        said = slices_from_pb(first.hello.slices)
        self._manager.connect(key, first.hello.total_pages, said, link, time.monotonic())
        self._outboxes.add(link.outbox)
        try:
            await serve_duplex(
                context,
                requests,
                link.outbox,
                lambda message: self._on_worker_message(worker, link, message),
                _worker_heartbeat,
            )
        finally:
            self._outboxes.discard(link.outbox)
            self._manager.disconnect(worker, link, time.monotonic())

    async def Match(
        self, requests: AsyncIterator[pb.MatchRequest], context: grpc.aio.ServicerContext
    ) -> None:
        first = await self._first_message(requests)
        check_peer(first.hello)
        outbox: Outbox[pb.MatchResponse] = Outbox()
        outbox.gathers = first.hello.reads_several
        outbox.put_nowait(pb.MatchResponse(welcome=self._peer()))
        outbox.put_nowait(self._caps())
        _log.info("scheduler_connected", scheduler=first.hello.name, epoch=first.hello.epoch)

        def on_message(message: pb.MatchRequest) -> None:
            if message.WhichOneof("message") == "query":
                self._on_query(message.query, outbox)

        self._outboxes.add(outbox)
        self._schedulers.add(outbox)
        try:
            await serve_duplex(context, requests, outbox, on_message, _match_heartbeat)
        finally:
            self._outboxes.discard(outbox)
            self._schedulers.discard(outbox)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(
            workers=[
                pb.WorkerIndex(
                    worker=one.key.worker,
                    epoch=one.key.epoch,
                    namespace=one.key.namespace,
                    blocks=one.num_blocks,
                    event_seq=one.seq,
                    from_copy=one.from_copy,
                    last_seen_ms=round(one.silent_s * 1000),
                    tenant_pages={str(tenant): pages for tenant, pages in one.tenant_pages.items()},
                    policy_version=one.policy_version,
                )
                for one in self._manager.status(time.monotonic())
            ],
            queries_total=self._manager.lookup.num_queries,
            hits_total=self._manager.lookup.num_hits,
            index_version=self._manager.index.version,
        )

    async def _first_message(self, requests: AsyncIterator[Message]) -> Message:
        if self._draining:
            raise Draining("the kvmanager is shutting down")
        first = await first_message(requests)
        if first.WhichOneof("message") != "hello":
            raise InvalidField("hello", "must be the first message of the stream")
        return first

    def _on_worker_message(
        self, worker: WorkerId, link: "_GrpcLink", message: pb.ConnectWorkerRequest
    ) -> None:
        now = time.monotonic()
        try:
            match message.WhichOneof("message"):
                case "events":
                    self._manager.on_change(worker, link, _change(message.events), now)
                case "snapshot":
                    self._manager.on_snapshot(worker, link, _snapshot_part(message.snapshot), now)
                case "slices":
                    self._manager.on_slices(worker, link, slices_from_pb(message.slices), now)
                case "policy":
                    answer = message.policy
                    self._manager.on_policy(worker, link, answer.version, answer.refusal, now)
                case _:
                    self._manager.on_heartbeat(worker, link, now)
        except InvalidField as error:
            # One message that makes no sense must not stop those after it.
            _log.warning("unreadable_change", worker=worker, field=error.detail.field)
            self._manager.on_unreadable(worker, link, now)

    def _on_query(self, query: pb.MatchQuery, outbox: Outbox[pb.MatchResponse]) -> None:
        try:
            outbox.put_nowait(pb.MatchResponse(answer=self._traced_answer(query)))
        except InvalidField as error:
            # No answer is no hit; the other questions of the scheduler go on.
            _log.warning("unreadable_query", field=error.detail.field)

    def _traced_answer(self, query: pb.MatchQuery) -> pb.MatchAnswer:
        if not query.traceparent:
            return self._answer(query)
        with span("kvmanager.match", query.traceparent) as current:
            answer = self._answer(query)
            current.set_attribute("cached_tokens", answer.first_miss_token)
        return answer

    def _answer(self, query: pb.MatchQuery) -> pb.MatchAnswer:
        answer = self._manager.lookup.match(
            Query(
                hashes=hashes_from_pb(query.hashes),
                tenant=TenantId(query.tenant),
                own_salt=query.own_salt,
                namespace=query.namespace if query.HasField("namespace") else None,
            )
        )
        return pb.MatchAnswer(
            id=query.id,
            matches=[
                pb.WorkerMatch(worker=one.worker, epoch=one.epoch, tokens=one.num_blocks * BLOCK_SIZE)
                for one in answer.matches
            ],
            miss_reason=miss_reason_to_pb(answer.miss_reason),
            first_miss_token=answer.num_cached * BLOCK_SIZE,
            index_version=answer.index_version,
        )

    def _caps(self) -> pb.MatchResponse:
        caps = {str(tenant): pages for tenant, pages in self._manager.caps.items()}
        return pb.MatchResponse(caps=pb.Caps(max_pages=caps))

    def _peer(self) -> types_pb2.Peer:
        return peer_to_pb(self._name, self._epoch(), self._build)


class _GrpcLink:
    """A worker's stream, as the manager sees it."""

    def __init__(self) -> None:
        self.outbox: Outbox[pb.ConnectWorkerResponse] = Outbox()

    def push_slices(
        self, version: int, max_pages: Mapping[TenantId, int], caps: Mapping[TenantId, int]
    ) -> None:
        slices = [
            pb.Slice(tenant=tenant, max_pages=pages, cap=caps[tenant]) for tenant, pages in max_pages.items()
        ]
        self.outbox.put_nowait(pb.ConnectWorkerResponse(slices=pb.Slices(version=version, slices=slices)))

    def push_policy(self, policy: EvictionPolicy) -> None:
        order = _EVICTION_ORDERS[policy.order]
        ttl_s = policy.idle_ttl_s
        message = pb.Policy(
            version=policy.version,
            eviction_order=order,
            idle_ttl_ms=None if ttl_s is None else round(ttl_s * 1000),
        )
        self.outbox.put_nowait(pb.ConnectWorkerResponse(policy=message))

    def ask_snapshot(self) -> None:
        self.outbox.put_nowait(pb.ConnectWorkerResponse(need_snapshot=pb.NeedSnapshot()))

    def close(self) -> None:
        self.outbox.close()


def _change(events: pb.Events) -> CacheChange:
    return CacheChange(
        seq=events.seq,
        stored=hashes_from_pb(events.stored),
        removed=hashes_from_pb(events.removed),
        removal_reason=_REMOVAL_REASONS.get(events.removal_reason, MissReason.EVICTED_FOR_SPACE),
        tenant_pages={TenantId(tenant): pages for tenant, pages in events.tenant_pages.items()},
    )


def _snapshot_part(snapshot: pb.Snapshot) -> SnapshotPart:
    return SnapshotPart(
        seq=snapshot.seq, blocks=hashes_from_pb(snapshot.hashes), first=snapshot.first, more=snapshot.more
    )


def _worker_heartbeat() -> pb.ConnectWorkerResponse:
    message = pb.ConnectWorkerResponse()
    message.heartbeat.SetInParent()
    return message


def _match_heartbeat() -> pb.MatchResponse:
    message = pb.MatchResponse()
    message.heartbeat.SetInParent()
    return message
