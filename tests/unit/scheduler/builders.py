"""Builders of what the scheduler's core is told."""

import itertools
from collections.abc import Iterable
from typing import TypeVar

from scheduler.core.credits import Report, WorkerHello
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import Output
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire, PromptUse, TenantUse
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.capacity import Capacity
from services.domain.generation import Band, Limits, RequestClass
from services.domain.ids import (
    BlockHash,
    Epoch,
    GatewayId,
    Namespace,
    RequestId,
    RequestKey,
    TenantId,
    WorkerId,
)

T = TypeVar("T")
GATEWAY = GatewayId("gateway-0")
MODEL = "m"


def key(request_id: str, attempt: int = 1) -> RequestKey:
    return RequestKey(RequestId(request_id), attempt)


def acquire(
    request_id: str,
    *,
    attempt: int = 1,
    tokens: int = 32,
    output: int = 16,
    band: Band = Band.STANDARD,
    model: str = MODEL,
    blocks: int = 0,
    limits: Limits | None = None,
    waited_s: float = 0.0,
    avoid: Iterable[str] = (),
    cache_opt_out: bool = False,
    n: int = 1,
    tenant: str = "local",
    weight: float = 1.0,
    digest: bytes = b"",
    kind: RequestClass = RequestClass.SHORT,
) -> Acquire:
    return Acquire(
        key=key(request_id, attempt),
        tenant=TenantId(tenant),
        band=band,
        request_class=kind,
        model=model,
        num_prompt_tokens=tokens,
        max_output_tokens=output,
        num_choices=n,
        block_hashes=tuple(BlockHash(bytes([i]) * 16) for i in range(blocks)),
        limits=limits or Limits(),
        waited_s=waited_s,
        avoid=frozenset((WorkerId(name), None) for name in avoid),
        prompt_digest=digest,
        cache_opt_out=cache_opt_out,
        weight=weight,
    )


def hello(
    worker: str = "worker-0",
    *,
    epoch: int = 1,
    model: str = MODEL,
    pages: int = 64,
    page_size: int = 16,
    context: int = 4096,
    max_sequences: int = 32,
    max_step_tokens: int = 512,
    max_prefill_tokens: int | None = None,
    live: Iterable[RequestKey] = (),
    draining: bool = False,
) -> WorkerHello:
    return WorkerHello(
        worker=WorkerId(worker),
        epoch=Epoch(epoch),
        address=f"127.0.0.1:{worker[-1]}",
        model=model,
        revision="r1",
        namespace=Namespace(f"ns-{model}"),
        capacity=Capacity(
            max_context_tokens=context,
            total_pages=pages,
            page_size=page_size,
            max_sequences=max_sequences,
        ),
        max_step_tokens=max_step_tokens,
        max_prefill_tokens=max_step_tokens if max_prefill_tokens is None else max_prefill_tokens,
        live=tuple(live),
        draining=draining,
    )


_report_numbers = itertools.count(1)


def report(
    *,
    granted: int,
    seen: int = 0,
    startable: int = 64,
    waiting_tokens: int = 0,
    running: int = 0,
    waiting: int = 0,
    started: Iterable[RequestKey] = (),
    ended: Iterable[RequestKey] = (),
    at_slice: Iterable[str] = (),
    output_tokens: dict[str, int] | None = None,
    prompts: dict[RequestKey, PromptUse] | None = None,
    failures: dict[RequestKey, int] | None = None,
    stuck_s: float = 0.0,
    draining: bool = False,
) -> Report:
    return Report(
        seq=next(_report_numbers),
        placements_seen=seen,
        granted=granted,
        startable_pages=startable,
        free_pages=startable,
        reclaimable_pages=0,
        waiting_tokens=waiting_tokens,
        running=running,
        waiting=waiting,
        started=tuple(started),
        ended=tuple(ended),
        at_slice=frozenset(TenantId(tenant) for tenant in at_slice),
        tenant_use={
            TenantId(tenant): TenantUse(output=count) for tenant, count in (output_tokens or {}).items()
        },
        prompts=prompts or {},
        failures=failures or {},
        stuck_s=stuck_s,
        draining=draining,
    )


def core(now: float = 0.0, *, policy: QueuePolicy | None = None, **rules: float) -> SchedulerCore:
    return SchedulerCore(Rules(**rules), policy or FifoPolicy(), now)  # type: ignore[arg-type]


def only(kind: type[T], outputs: Iterable[Output]) -> list[T]:
    """Return the outputs of one kind."""
    return [output for output in outputs if isinstance(output, kind)]
