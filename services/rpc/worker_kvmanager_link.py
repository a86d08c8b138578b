"""A worker's stream to the kvmanager: numbered changes of what its pool has published, and snapshots.

Slices and policy come back, and what the worker keeps to of them is said again: when it changes, and in the
hello of every stream. Nothing waits for it: without a kvmanager the worker goes on under its last slices.
Does not know pages; it is told which blocks came and went, in order.
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
from services.domain.slices import SlicesInForce
from services.rpc.convert import check_peer
from services.rpc.slices import slices_to_pb
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

    def set_slices(
        self,
        version: int,
        max_pages: Mapping[TenantId, int],
        caps: Mapping[TenantId, int],
        default_max: int | None,
    ) -> None:
        """Replace the tenants' slices; `slices_changed` is called once they are applied."""

    def slices(self) -> SlicesInForce:
        """Return what is kept to now, slices that were set and are not applied included."""

    def set_idle_ttl(self, idle_ttl_s: float | None) -> None:
        """Give up cached blocks that nobody has used for so long; None: never for that."""

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
        self._by_policy = False
        """Why those in `_removed` went: one message has one reason."""
        self._tenant_pages: dict[TenantId, int] = {}
        self.has_slices = asyncio.Event()
        """Set when the first slices of this process's life have come."""

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

    def removed(self, block: BlockHash, *, by_policy: bool) -> None:
        """Note that a block can no longer be reused: by the policy, or because its page was needed."""
        if by_policy != self._by_policy and self._removed:
            self._flush()
        self._by_policy = by_policy
        self._stored.pop(block, None)
        self._removed[block] = None

    def stored(self, block: BlockHash) -> None:
        """Note that a block may be reused."""
        self._stored[block] = None

    def flush_soon(self, tenant_pages: Mapping[TenantId, int]) -> None:
        """Send what was noted within `GATHER_S`, with the pages that tenants hold now."""
        self._tenant_pages.update(tenant_pages)
        if self._timer is None and (self._stored or self._removed or self._tenant_pages):
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def slices_changed(self, slices: SlicesInForce) -> None:
        """Say at once what the worker keeps to now, after what its tenants held before."""
        self._flush()
        if self._outbox is not None and self._is_welcome:
            self._outbox.put_nowait(pb.ConnectWorkerRequest(slices=slices_to_pb(slices)))

    def _flush(self) -> None:
        """Number what was gathered. `removed` goes before `stored`: a block that came back is stored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not (self._stored or self._removed or self._tenant_pages):
            return
        self._seq += 1
        reason = pb.REMOVAL_REASON_POLICY if self._by_policy else pb.REMOVAL_REASON_SPACE
        events = pb.Events(
            seq=self._seq,
            stored=b"".join(self._stored),
            removed=b"".join(self._removed),
            removal_reason=reason if self._removed else pb.REMOVAL_REASON_UNSPECIFIED,
            tenant_pages={str(tenant): pages for tenant, pages in self._tenant_pages.items()},
        )
        for gathered in (self._stored, self._removed, self._tenant_pages):
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
            slices=slices_to_pb(self._control.slices()),
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
            self._control.set_slices(
                slices.version,
                {TenantId(one.tenant): one.max_pages for one in slices.slices},
                {TenantId(one.tenant): one.cap for one in slices.slices if one.cap},
                slices.default_max if slices.HasField("default_max") else None,
            )
            self.has_slices.set()
        elif kind == "policy":
            answer = pb.PolicyAnswer(version=message.policy.version, refusal=self._obey(message.policy))
            outbox.put_nowait(pb.ConnectWorkerRequest(policy=answer))
        elif kind == "need_snapshot":
            self._send_snapshot(outbox)

    def _obey(self, policy: pb.Policy) -> str:
        """Follow a policy and return "", or say why not: this worker's pool has one order of eviction."""
        if policy.eviction_order != pb.EVICTION_ORDER_LRU:
            # A number, for this build may not know its name.
            _log.warning("eviction_policy_refused", version=policy.version, order=policy.eviction_order)
            return f"eviction order {policy.eviction_order} is not known; the last policy stays"
        ttl_s = policy.idle_ttl_ms / 1000 if policy.HasField("idle_ttl_ms") else None
        self._control.set_idle_ttl(ttl_s)
        _log.info("eviction_policy_followed", version=policy.version, order="lru", idle_ttl_s=ttl_s)
        return ""

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
