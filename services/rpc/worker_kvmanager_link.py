"""A worker's stream to the kvmanager: numbered changes of what its pool has published, and snapshots.

Nothing waits for it: without a kvmanager the worker goes on under its last slices. Does not know pages; it is
told which blocks came and went, in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, Protocol

import grpc
import structlog

from protos.kvmanager.v1 import kvmanager_pb2 as pb
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from services.chassis.stream import Outbox, keep_connected, run_duplex
from services.domain.block_hash import DIGEST_BYTES
from services.domain.ids import BlockHash, Epoch, TenantId
from services.rpc.convert import check_peer
from services.rpc.worker_facts import WorkerFacts

GATHER_S = 0.05
"""Seconds of changes that go into one message; a prediction may be that old."""
RING_MESSAGES = 512
"""Messages kept for a reconnect to the same kvmanager; a longer gap takes a snapshot."""
SNAPSHOT_PART_BLOCKS = (1 << 20) // DIGEST_BYTES
"""Blocks in one part of a snapshot: 1 MiB."""

_log = structlog.get_logger()


class KvControl(Protocol):
    """The engine, as far as the kvmanager has a say in it."""

    def set_slices(self, max_pages: Mapping[TenantId, int], default_max: int | None) -> None: ...

    def snapshot(self, reply: Callable[[Sequence[BlockHash]], None]) -> None:
        """Give every published block to `reply`, on the loop, after all changes told until then."""


class WorkerKvManagerLink:
    """Owns the numbering of changes, those not yet sent, and a ring of those that were."""

    def __init__(self, channel: grpc.aio.Channel, facts: WorkerFacts, control: KvControl) -> None:
        self._stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)  # type: ignore[no-untyped-call]
        self._facts = facts
        self._control = control
        self._outbox: Outbox[pb.ConnectWorkerRequest] | None = None
        self._told: Epoch | None = None
        """The boot of the kvmanager that knows everything up to what is in the ring."""
        self._is_welcome = False
        self._timer: asyncio.TimerHandle | None = None
        self._seq = 0
        self._ring: deque[pb.Events] = deque(maxlen=RING_MESSAGES)
        self._stored: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}
        self._tenant_pages: dict[TenantId, int] = {}
        self._wants_more: dict[TenantId, None] = {}

    async def run(self) -> NoReturn:
        """Keep the stream up until cancelled."""
        await keep_connected("kvmanager", self._session)

    def restart(self) -> None:
        """Number changes from 1 under the facts' new epoch, on a new stream."""
        self._told = None
        self._seq = 0
        self._ring.clear()
        if self._outbox is not None:
            self._outbox.close()

    def removed(self, block: BlockHash) -> None:
        """Note that a block can no longer be reused (its page was needed)."""
        self._stored.pop(block, None)
        self._removed[block] = None

    def stored(self, block: BlockHash) -> None:
        """Note that a block may be reused."""
        self._stored[block] = None

    def flush_soon(self, tenant_pages: Mapping[TenantId, int], wants_more: Iterable[TenantId]) -> None:
        """Send what was noted within `GATHER_S`, with the pages that tenants hold now."""
        self._tenant_pages.update(tenant_pages)
        self._wants_more.update(dict.fromkeys(wants_more))
        if self._timer is None and (self._stored or self._removed or self._tenant_pages):
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def _flush(self) -> None:
        """Number what was gathered. `removed` goes before `stored`: a block that came back is stored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not (self._stored or self._removed or self._tenant_pages):
            return
        self._seq += 1
        events = pb.Events(
            seq=self._seq,
            stored=b"".join(self._stored),
            removed=b"".join(self._removed),
            removal_reason=pb.REMOVAL_REASON_SPACE if self._removed else pb.REMOVAL_REASON_UNSPECIFIED,
            tenant_pages={str(tenant): pages for tenant, pages in self._tenant_pages.items()},
            wants_more=list(self._wants_more),
        )
        for gathered in (self._stored, self._removed, self._tenant_pages, self._wants_more):
            gathered.clear()
        self._ring.append(events)
        if self._outbox is not None and self._is_welcome:
            self._outbox.put_nowait(pb.ConnectWorkerRequest(events=events))

    async def _session(self) -> None:
        outbox: Outbox[pb.ConnectWorkerRequest] = Outbox()
        capacity = self._facts.capacity
        hello = pb.WorkerHello(
            peer=self._facts.peer(),
            namespace=self._facts.namespace,
            total_pages=capacity.total_pages,
            page_size=capacity.page_size,
        )
        outbox.put_nowait(pb.ConnectWorkerRequest(hello=hello))

        def on_message(message: pb.ConnectWorkerResponse) -> None:
            if message.WhichOneof("message") == "welcome":
                check_peer(message.welcome.peer)
                self._welcomed(Epoch(message.welcome.peer.epoch), outbox)
            else:
                self._on_message(message, outbox)

        self._outbox = outbox
        try:
            await run_duplex(self._stub.ConnectWorker, outbox, on_message, _heartbeat)
        finally:
            self._outbox = None
            self._is_welcome = False

    def _welcomed(self, epoch: Epoch, outbox: Outbox[pb.ConnectWorkerRequest]) -> None:
        """Go on by number where the same kvmanager answers; tell everything to another one."""
        self._is_welcome = True
        if epoch == self._told:
            for events in self._ring:
                outbox.put_nowait(pb.ConnectWorkerRequest(events=events))
        else:
            self._told = epoch
            self._send_snapshot(outbox)

    def _on_message(self, message: pb.ConnectWorkerResponse, outbox: Outbox[pb.ConnectWorkerRequest]) -> None:
        kind = message.WhichOneof("message")
        if kind == "slices":
            slices = message.slices
            default_max = slices.default_max if slices.HasField("default_max") else None
            self._control.set_slices(
                {TenantId(one.tenant): one.max_pages for one in slices.slices}, default_max
            )
        elif kind == "policy":
            self._obey(message.policy)
        elif kind == "need_snapshot":
            self._send_snapshot(outbox)

    def _obey(self, policy: pb.Policy) -> None:
        """Follow a policy, or say that this worker cannot: its pool has one order of eviction."""
        if policy.eviction_order == pb.EVICTION_ORDER_LRU:
            _log.info("eviction_policy_followed", version=policy.version, order="lru")
        else:
            # A number, for this build may not know its name.
            _log.warning("eviction_policy_refused", version=policy.version, order=policy.eviction_order)

    def _send_snapshot(self, outbox: Outbox[pb.ConnectWorkerRequest]) -> None:
        def reply(blocks: Sequence[BlockHash]) -> None:
            self._flush()
            for part in snapshot_parts(blocks, self._seq):
                outbox.put_nowait(pb.ConnectWorkerRequest(snapshot=part))

        self._control.snapshot(reply)


def snapshot_parts(blocks: Sequence[BlockHash], seq: int) -> Iterable[pb.Snapshot]:
    """Cut a snapshot into messages of at most 1 MiB of hashes; an empty pool gives one empty part."""
    starts = range(0, max(1, len(blocks)), SNAPSHOT_PART_BLOCKS)
    for start in starts:
        yield pb.Snapshot(
            seq=seq,
            hashes=b"".join(blocks[start : start + SNAPSHOT_PART_BLOCKS]),
            first=start == 0,
            more=start + SNAPSHOT_PART_BLOCKS < len(blocks),
        )


def _heartbeat() -> pb.ConnectWorkerRequest:
    message = pb.ConnectWorkerRequest()
    message.heartbeat.SetInParent()
    return message
