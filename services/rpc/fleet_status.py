"""Ask scheduler, kvmanager and workers how they are, for people and tools.

Turns their answers into plain values; a process that does not answer in time is None, never an error.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import grpc

from protos.kvmanager.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from protos.worker.v1 import worker_pb2, worker_pb2_grpc
from services.chassis.grpc import is_serving
from services.chassis.tls import Tls, open_channel
from services.domain.bands import Bands
from services.domain.degradation import Step
from services.domain.generation import Band

LIMIT_S = 1.0

_OwnSteps = dict[tuple[str, int], dict[str, int]]
"""Steps that tenants have climbed by themselves: by tenant and band, then by model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    """A worker as the scheduler sees it."""

    name: str
    address: str
    model: str
    draining: bool
    placed: int
    granted: int
    last_seen_ms: int
    breaker: str
    """closed, open or half_open: whether it is given requests."""
    breaker_reason: str
    """Why its breaker opened last; empty while it never did."""
    breaker_retry_ms: int
    """Milliseconds until an open breaker lets one request try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedPrompt:
    """A prompt that is refused because workers died with it."""

    digest: str
    """In hexadecimal."""
    num_workers: int
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The scheduler's queue and fleet."""

    term: int
    waiting: int
    waiting_tokens: int
    oldest_wait_ms: int
    placed_total: int
    rejected_total: int
    num_gateways: int
    degraded: tuple[str, ...]
    """Bands that have degraded, as `model/band: step`, and in which tenants have by themselves, as
    `model/band: N by themselves, up to step`."""
    workers: tuple[PlacedWorker, ...]
    quarantine: tuple[QuarantinedPrompt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """A tenant as the scheduler sees it; counts are of the scheduler's term."""

    tenant: str
    band: str
    """Of its last request; empty: it made none."""
    weight: float
    waiting: int
    waiting_tokens: int
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int
    service: float
    """As fairness counts it."""
    degraded: tuple[str, ...]
    """How far it has degraded, by itself or with its band, as `model: step`, and its budgets let it, as
    `budget: step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """The kvmanager's prefix index."""

    blocks: int
    queries_total: int
    hits_total: int
    workers_from_copy: int
    """Workers known from the Redis copy only."""
    tenant_pages: dict[str, int]
    """KV pages that tenants hold, over all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker's own counts."""

    name: str
    executor: str
    running: int
    waiting: int
    total_pages: int
    free_pages: int
    cached_pages: int
    held_pages: int
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int
    preemptions: int
    stuck_ms: int


async def serving(role: str, address: str, tls: Tls | None = None) -> bool:
    """Whether the service of that role at `address` welcomes calls."""
    async with open_channel(tls, address, role) as channel:
        return await is_serving(channel, limit_s=LIMIT_S)


async def queue_status(address: str, tls: Tls | None = None) -> QueueStatus | None:
    """Ask the scheduler."""
    answer = await _queue_answer(address, tls, tenants=False)
    return None if answer is None else _queue_of(answer)


async def queue_and_tenants(
    address: str, tls: Tls | None = None
) -> tuple[QueueStatus, tuple[TenantStatus, ...]] | None:
    """Ask the scheduler for its tenants too."""
    answer = await _queue_answer(address, tls, tenants=True)
    if answer is None:
        return None
    own: _OwnSteps = {}
    for step in answer.tenant_steps:
        own.setdefault((step.tenant, step.band), {})[step.model] = step.step
    return _queue_of(answer), tuple(_tenant_of(one, answer, own) for one in answer.tenants)


async def _queue_answer(address: str, tls: Tls | None, *, tenants: bool) -> Any | None:
    async with open_channel(tls, address, "scheduler") as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        return await _ask(stub.GetStatus, scheduler_pb2.GetStatusRequest(tenants=tenants))


def _bands_of(answer: scheduler_pb2.GetStatusResponse) -> Bands:
    return Bands(tuple(answer.bands)) if answer.bands else Bands()


def _tenant_of(
    one: scheduler_pb2.TenantState, answer: scheduler_pb2.GetStatusResponse, own: _OwnSteps
) -> TenantStatus:
    steps: dict[str, int] = {
        model.name: each.step for model in answer.models for each in model.steps if each.band == one.band
    }
    for model, step in own.get((one.tenant, one.band), {}).items():
        steps[model] = max(step, steps.get(model, 0))
    if one.budget_step:
        steps["budget"] = one.budget_step
    return TenantStatus(
        tenant=one.tenant,
        band=_bands_of(answer).name(Band(one.band)) if one.band else "",
        weight=one.weight,
        waiting=one.waiting,
        waiting_tokens=one.waiting_tokens,
        uncached_tokens=one.uncached_tokens,
        cached_tokens=one.cached_tokens,
        output_tokens=one.output_tokens,
        service=one.service,
        degraded=tuple(f"{name}: {Step(step).name.lower()}" for name, step in steps.items()),
    )


def _queue_of(answer: scheduler_pb2.GetStatusResponse) -> QueueStatus:
    bands = _bands_of(answer)
    workers = tuple(
        PlacedWorker(
            name=one.name,
            address=one.address,
            model=one.model,
            draining=one.draining,
            placed=one.placed,
            granted=one.granted,
            last_seen_ms=one.last_seen_ms,
            breaker=scheduler_pb2.Breaker.Name(one.breaker).removeprefix("BREAKER_").lower(),
            breaker_reason=one.breaker_reason,
            breaker_retry_ms=one.breaker_retry_ms,
        )
        for one in sorted(answer.workers, key=lambda worker: str(worker.name))
    )
    return QueueStatus(
        term=answer.term,
        waiting=answer.waiting,
        waiting_tokens=answer.waiting_tokens,
        oldest_wait_ms=answer.oldest_wait_ms,
        placed_total=answer.placed_total,
        rejected_total=answer.rejected_total,
        num_gateways=len(answer.gateways),
        degraded=_degraded_of(answer, bands),
        workers=workers,
        quarantine=tuple(
            QuarantinedPrompt(digest=one.digest.hex(), num_workers=one.num_workers, left_s=one.left_ms / 1000)
            for one in answer.quarantine
        ),
    )


def _degraded_of(answer: scheduler_pb2.GetStatusResponse, bands: Bands) -> tuple[str, ...]:
    """Return what has degraded: whole bands, then how many tenants have by themselves."""
    whole = [
        f"{model.name}/{bands.name(Band(one.band))}: {Step(one.step).name.lower()}"
        for model in answer.models
        for one in model.steps
    ]
    by_band: dict[tuple[str, int], list[int]] = {}
    for each in answer.tenant_steps:
        by_band.setdefault((each.model, each.band), []).append(each.step)
    alone = [
        f"{model}/{bands.name(Band(band))}: {len(steps)} by themselves, up to {Step(max(steps)).name.lower()}"
        for (model, band), steps in sorted(by_band.items())
    ]
    return (*whole, *alone)


async def index_status(address: str, tls: Tls | None = None) -> IndexStatus | None:
    """Ask the kvmanager."""
    async with open_channel(tls, address, "kvmanager") as channel:
        stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await _ask(stub.GetStatus, kvmanager_pb2.GetStatusRequest())
    if answer is None:
        return None
    pages: Counter[str] = Counter()
    for worker in answer.workers:
        pages.update(worker.tenant_pages)
    return IndexStatus(
        tenant_pages=dict(pages),
        blocks=sum(one.blocks for one in answer.workers),
        queries_total=answer.queries_total,
        hits_total=answer.hits_total,
        workers_from_copy=sum(one.from_copy for one in answer.workers),
    )


async def worker_statuses(addresses: list[str], tls: Tls | None = None) -> list[WorkerStatus | None]:
    """Ask all workers at once."""
    return list(await asyncio.gather(*(_worker_status(address, tls) for address in addresses)))


async def _worker_status(address: str, tls: Tls | None) -> WorkerStatus | None:
    async with open_channel(tls, address, "worker") as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await _ask(stub.GetStatus, worker_pb2.GetStatusRequest())
    if answer is None:
        return None
    names = WorkerStatus.__dataclass_fields__
    return WorkerStatus(**{name: getattr(answer, name) for name in names})


async def _ask(method: Any, request: Any) -> Any | None:
    try:
        return await method(request, timeout=LIMIT_S)
    except grpc.RpcError:
        return None
