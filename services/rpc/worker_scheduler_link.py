"""A worker's stream to the scheduler: says how much it takes, hears which placements exist.

Sends a Report soon after a change and each second; reconnects for ever. Does not know where the numbers come
from, and nothing waits for it: a worker without a scheduler goes on with what it has.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import grpc

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from services.chassis.stream import Outbox, keep_connected, run_duplex
from services.domain.errors import StaleAttempt
from services.domain.ids import RequestKey, TenantId
from services.rpc.convert import check_peer, key_to_pb
from services.rpc.worker_facts import WorkerFacts

SOON_S = 0.005
"""Seconds in which started, ended and granted are gathered into one report."""
LATER_S = 0.1
"""The same for counts that nobody waits for: tokens used, pages of running sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensUsed:
    """A tenant's tokens since the worker's boot."""

    uncached: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """What the scheduler hears of a request that is over."""

    key: RequestKey
    code: int
    """Canonical gRPC code, 0 for a good end, 1 for one by a cancel."""
    uncached_tokens: int = 0
    """Prompt tokens computed here, each counted once."""
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One report; see `scheduler.v1.Report`."""

    placements_seen: int
    granted: int
    startable_pages: int
    free_pages: int
    reclaimable_pages: int
    waiting_tokens: int
    running: int
    waiting: int
    started: Sequence[RequestKey] = ()
    ended: Sequence[EndedRequest] = ()
    tenant_use: Mapping[TenantId, TokensUsed] = field(default_factory=dict)
    at_slice: Sequence[TenantId] = ()
    draining: bool
    steps: int
    stuck_s: float
    """Seconds since the last finished step while there is work; 0 when idle."""
    prefill_tokens_per_s: float


class WorkerLoad(Protocol):
    """Where reports come from and where the scheduler's word goes."""

    def begin_link(self) -> tuple[Sequence[RequestKey], bool]:
        """Count grants from 0 on; return what is live and whether the worker drains."""

    def take(self) -> Load:
        """Return the report of now; started, ended and changed use are given once."""

    def obey(self, term: int, submit_within_s: float) -> bool:
        """Accept the scheduler of `term`, and its limit for submits, unless a higher term has spoken."""

    def placed(self, highest_seq: int, abandoned: Sequence[int]) -> None: ...

    def set_ranks(self, over_share: Mapping[TenantId, float]) -> None: ...

    def drain(self) -> None: ...


class WorkerSchedulerLink:
    """Owns the stream and the timer of the next report."""

    def __init__(self, channel: grpc.aio.Channel, facts: WorkerFacts, load: WorkerLoad) -> None:
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        self._facts = facts
        self._load = load
        self._outbox: Outbox[pb.ConnectWorkerRequest] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seq = 0
        self._obeyed = False

    async def run(self) -> NoReturn:
        """Keep the stream up until cancelled."""
        await keep_connected("scheduler", self._session)

    def changed(self, *, soon: bool) -> None:
        """Report within `SOON_S` or `LATER_S`; further changes until then go along."""
        if self._outbox is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + (SOON_S if soon else LATER_S)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._report)

    def restart(self) -> None:
        """End the stream; the next one says hello with the facts of then."""
        if self._outbox is not None:
            self._outbox.close()

    async def _session(self) -> None:
        outbox: Outbox[pb.ConnectWorkerRequest] = Outbox()
        self._seq, self._obeyed = 0, False
        outbox.put_nowait(self._hello())
        self._outbox = outbox
        try:
            await run_duplex(self._stub.ConnectWorker, outbox, self._on_message, self._next_report)
        finally:
            self._outbox = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _hello(self) -> pb.ConnectWorkerRequest:
        live, draining = self._load.begin_link()
        facts, capacity = self._facts, self._facts.capacity
        hello = pb.WorkerHello(
            peer=facts.peer(),
            address=facts.address,
            model=facts.model,
            revision=facts.revision,
            namespace=facts.namespace,
            numerics=facts.numerics,
            max_context_tokens=capacity.max_context_tokens,
            total_pages=capacity.total_pages,
            page_size=capacity.page_size,
            max_sequences=capacity.max_sequences,
            max_step_tokens=facts.max_step_tokens,
            max_prefill_tokens=facts.max_prefill_tokens,
            live=[key_to_pb(key) for key in live],
            draining=draining,
        )
        return pb.ConnectWorkerRequest(hello=hello)

    def _report(self) -> None:
        self._timer = None
        if self._outbox is not None:
            self._outbox.put_nowait(self._next_report())

    def _next_report(self) -> pb.ConnectWorkerRequest:
        load = self._load.take()
        self._seq += 1
        report = pb.Report(
            seq=self._seq,
            placements_seen=load.placements_seen,
            granted=load.granted,
            startable_pages=load.startable_pages,
            free_pages=load.free_pages,
            reclaimable_pages=load.reclaimable_pages,
            waiting_tokens=load.waiting_tokens,
            running=load.running,
            waiting=load.waiting,
            started=[key_to_pb(key) for key in load.started],
            ended=[
                pb.EndedRequest(
                    key=key_to_pb(one.key),
                    code=one.code,
                    uncached_tokens=one.uncached_tokens,
                    cached_tokens=one.cached_tokens,
                )
                for one in load.ended
            ],
            tenant_use=[
                pb.TenantUse(
                    tenant=tenant,
                    uncached_tokens=used.uncached,
                    cached_tokens=used.cached,
                    output_tokens=used.output,
                )
                for tenant, used in load.tenant_use.items()
            ],
            at_slice=load.at_slice,
            draining=load.draining,
            steps=load.steps,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            stuck_ms=round(load.stuck_s * 1000),
        )
        return pb.ConnectWorkerRequest(report=report)

    def _on_message(self, message: pb.ConnectWorkerResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "welcome":
            check_peer(message.welcome.peer)
            welcome = message.welcome
            self._obeyed = self._load.obey(welcome.term, welcome.submit_within_ms / 1000)
            if not self._obeyed:
                raise StaleAttempt(f"a scheduler of the old term {message.welcome.term} is not obeyed")
        elif not self._obeyed:
            return
        elif kind == "placed":
            self._load.placed(message.placed.highest_seq, message.placed.abandoned)
        elif kind == "ranks":
            self._load.set_ranks({TenantId(t): share for t, share in message.ranks.over_share.items()})
        elif kind == "drain":
            self._load.drain()
