"""Messages of gateways and workers as the core's values, and back.

Refuses what no core may see; decides nothing else and holds nothing.
"""

from collections.abc import Iterable
from itertools import repeat
from typing import Any, cast

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.types.v1 import types_pb2
from scheduler.core.breaker import Breaker, State
from scheduler.core.credits import Report, WorkerHello
from scheduler.core.degrade import TenantStep
from scheduler.core.outputs import (
    ModelsChanged,
    ModelState,
    Output,
    Placed,
    PlacementsMade,
    Queued,
    Ranks,
    Rejected,
    TenantStepsChanged,
)
from scheduler.core.request import Acquire, PromptUse, Requeue, TenantUse, Terms
from scheduler.core.share_queue import FairRules
from scheduler.core.tenant_table import TenantRow
from services.domain.block_hash import DIGEST_BYTES
from services.domain.capacity import Capacity
from services.domain.degradation import Step
from services.domain.errors import InvalidField, ServeError
from services.domain.generation import MAX_CHOICES, Band, RequestClass
from services.domain.ids import BlockHash, Epoch, Namespace, TenantId, WorkerId
from services.rpc import convert

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6
"""Bounds of a tenant's weight."""
_CLASSES = frozenset(kind.value for kind in RequestClass)
_STEPS: dict[int, Step] = {step.value: step for step in Step}


def read_acquire(message: pb.Acquire, num_bands: int) -> Acquire | ServeError:
    """Return what a gateway asks for, or why that is no request."""
    if not 1 <= message.band <= num_bands:
        return InvalidField("band", f"must be a rank from 1 to {num_bands}, got {message.band}")
    try:
        kind = RequestClass(message.request_class)
    except ValueError:
        return InvalidField("request_class", f"there is no class {message.request_class}")
    if not message.key.request_id or message.key.attempt < 1:
        return InvalidField("key", "request id and attempt must be set")
    if message.num_prompt_tokens < 1:
        return InvalidField("num_prompt_tokens", "must be at least 1")
    if not 1 <= message.n <= MAX_CHOICES:
        return InvalidField("n", f"must be 1 to {MAX_CHOICES}, got {message.n}")
    weight = message.weight or 1.0
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        return InvalidField("weight", f"must be {MIN_WEIGHT} to {MAX_WEIGHT}, got {weight}")
    hashes = cast(tuple[BlockHash, ...], tuple(message.block_hashes))
    if any(length != DIGEST_BYTES for length in set(map(len, hashes))):
        return InvalidField("block_hashes", f"each must have {DIGEST_BYTES} bytes")
    if len(message.avoid_epochs) not in (0, len(message.avoid)):
        return InvalidField("avoid_epochs", f"must be parallel to the {len(message.avoid)} of avoid")
    if len(message.prompt_digest) > DIGEST_BYTES:
        return InvalidField("prompt_digest", f"must have at most {DIGEST_BYTES} bytes")
    epochs = map(Epoch, message.avoid_epochs) if message.avoid_epochs else repeat(None, len(message.avoid))
    return Acquire(
        key=convert.key_from_pb(message.key),
        tenant=TenantId(message.tenant),
        band=Band(message.band),
        request_class=kind,
        model=message.model,
        num_prompt_tokens=message.num_prompt_tokens,
        max_output_tokens=message.max_output_tokens,
        num_choices=message.n,
        block_hashes=hashes,
        limits=convert.limits_from_pb(message.limits),
        waited_s=message.waited_ms / 1000,
        avoid=frozenset(zip(map(WorkerId, message.avoid), epochs, strict=True)),
        prompt_digest=message.prompt_digest,
        own_salt=message.own_salt,
        cache_opt_out=message.cache_opt_out,
        traceparent=message.traceparent,
        weight=weight,
        # Only shown: one that is not known yet here is none.
        budget_step=_STEPS.get(message.budget_step, Step.NONE),
    )


def read_terms(message: pb.Terms, num_bands: int) -> Terms:
    """Return what edits of tenants changed; a gateway that knows more bands means the last one."""
    return Terms(
        weights={
            TenantId(tenant): weight
            for tenant, weight in message.weights.items()
            if MIN_WEIGHT <= weight <= MAX_WEIGHT
        },
        requeued=tuple(
            Requeue(
                keys=tuple(map(convert.key_from_pb, one.keys)),
                band=Band(min(one.band, num_bands)),
                request_class=RequestClass(one.request_class),
            )
            for one in message.requeued
            if one.band >= 1 and one.request_class in _CLASSES
        ),
    )


def worker_hello(message: pb.WorkerHello) -> WorkerHello:
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
        max_prefill_tokens=message.max_prefill_tokens or message.max_step_tokens,
        live=tuple(convert.key_from_pb(key) for key in message.live),
        draining=message.draining,
    )


def report(message: pb.Report) -> Report:
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
        failures={convert.key_from_pb(one.key): one.code for one in message.ended if one.code},
        stuck_s=message.stuck_ms / 1000,
        tenant_use={
            TenantId(use.tenant): TenantUse(use.uncached_tokens, use.cached_tokens, use.output_tokens)
            for use in message.tenant_use
        },
        at_slice=frozenset(TenantId(tenant) for tenant in message.at_slice),
        draining=message.draining,
    )


def to_gateway(output: Output, term: int) -> pb.ConnectGatewayResponse:
    if isinstance(output, Placed):
        return pb.ConnectGatewayResponse(placement=_placement(output, term))
    if isinstance(output, Rejected):
        return rejected(convert.key_to_pb(output.acquire.key), output.error)
    if isinstance(output, Queued):
        wait_s = output.expected_wait_s
        queued = pb.Queued(
            key=convert.key_to_pb(output.key),
            position=output.position,
            expected_wait_ms=None if wait_s is None else round(wait_s * 1000),
        )
        return pb.ConnectGatewayResponse(queued=queued)
    if isinstance(output, TenantStepsChanged):
        return pb.ConnectGatewayResponse(tenant_steps=pb.TenantSteps(steps=tenant_steps(output.steps)))
    assert isinstance(output, ModelsChanged), "nothing else is for gateways"
    return pb.ConnectGatewayResponse(models=pb.Models(models=models(output.models)))


def rejected(key: types_pb2.RequestKey, error: ServeError) -> pb.ConnectGatewayResponse:
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


def models(states: Iterable[ModelState]) -> list[pb.ModelState]:
    return [
        pb.ModelState(
            name=model.name,
            revision=model.revision,
            max_context_tokens=model.max_context_tokens,
            num_workers=model.num_workers,
            max_pages=model.max_pages,
            page_size=model.page_size,
            max_sequences=model.max_sequences,
            steps=[
                pb.BandStep(
                    band=cast(types_pb2.Band, band),
                    step=cast(types_pb2.DegradationStep, step.value),
                )
                for band, step in model.steps.items()
            ],
            batch_wait_ms=round(model.batch_wait_s * 1000),
        )
        for model in states
    ]


def tenant_steps(steps: Iterable[TenantStep]) -> list[pb.TenantStep]:
    return [
        pb.TenantStep(
            model=one.model,
            band=cast(types_pb2.Band, one.band),
            tenant=one.tenant,
            step=cast(types_pb2.DegradationStep, one.step.value),
        )
        for one in steps
    ]


def tenants(rows: Iterable[TenantRow]) -> list[pb.TenantState]:
    rules = FairRules()
    return [
        pb.TenantState(
            tenant=row.tenant,
            weight=row.weight,
            band=cast(types_pb2.Band, row.band or 0),
            waiting=row.num_waiting,
            waiting_tokens=row.waiting_tokens,
            uncached_tokens=row.use.uncached,
            cached_tokens=row.use.cached,
            output_tokens=row.use.output,
            service=rules.cost(row.use),
            budget_step=cast(types_pb2.DegradationStep, row.budget_step.value),
        )
        for row in rows
    ]


def to_worker(output: Output) -> pb.ConnectWorkerResponse:
    if isinstance(output, Ranks):
        over_share = {str(tenant): far for tenant, far in output.over_share.items()}
        return pb.ConnectWorkerResponse(ranks=pb.Ranks(version=output.version, over_share=over_share))
    assert isinstance(output, PlacementsMade), "workers hear of placements and ranks only"
    placed = pb.Placed(highest_seq=output.highest_seq, abandoned=output.abandoned)
    return pb.ConnectWorkerResponse(placed=placed)


def breaker_state(breaker: Breaker | None, now: float) -> dict[str, Any]:
    """Return the fields of a `WorkerState` that speak of its breaker; without one it is closed."""
    if breaker is None:
        return {"breaker": pb.BREAKER_CLOSED}
    left_s = max(0.0, breaker.until - now) if breaker.state is State.OPEN else 0.0
    return {
        "breaker": cast(pb.Breaker, breaker.state.value),
        "breaker_reason": breaker.reason or "",
        "breaker_retry_ms": round(left_s * 1000),
    }
