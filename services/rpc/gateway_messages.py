"""Turns what a gateway says to scheduler and worker into messages, and what they say back.

Knows both vocabularies and nothing else; the token path passes its arrays without coming here.
"""

import time
from collections.abc import Iterable, Mapping
from typing import cast

from protos.scheduler.v1 import scheduler_pb2
from protos.types.v1 import types_pb2
from protos.worker.v1 import worker_pb2
from services.domain.capacity import Capacity
from services.domain.degradation import Step
from services.domain.generation import Band, RequestClass
from services.domain.ids import Epoch, RequestKey, TenantId, WorkerId
from services.rpc import convert
from services.rpc.gateway_values import Acquisition, EndReport, ModelState, Placement, Submission, Tops


def acquire_to_pb(one: Acquisition) -> scheduler_pb2.Acquire:
    return scheduler_pb2.Acquire(
        key=convert.key_to_pb(one.key),
        tenant=one.tenant,
        band=cast(types_pb2.Band, one.band),
        request_class=cast(types_pb2.RequestClass, one.request_class.value),
        model=one.model,
        num_prompt_tokens=one.num_prompt_tokens,
        max_output_tokens=one.max_output_tokens,
        n=one.num_choices,
        block_hashes=one.block_hashes,
        limits=convert.limits_to_pb(one.limits),
        waited_ms=max(0, round((time.monotonic() - one.asked_at) * 1000)),
        avoid=[worker for worker, _ in one.avoid],
        avoid_epochs=[epoch for _, epoch in one.avoid],
        prompt_digest=one.prompt_digest,
        own_salt=one.own_salt,
        cache_opt_out=one.cache_opt_out,
        traceparent=one.traceparent,
        weight=one.weight,
        budget_step=cast(types_pb2.DegradationStep, one.budget_step.value),
    )


def model_from_pb(model: scheduler_pb2.ModelState) -> ModelState:
    return ModelState(
        name=model.name,
        revision=model.revision,
        num_workers=model.num_workers,
        capacity=Capacity(
            max_context_tokens=model.max_context_tokens,
            total_pages=model.max_pages,
            page_size=model.page_size,
            max_sequences=model.max_sequences,
        ),
        steps={Band(one.band): Step(one.step) for one in model.steps},
        batch_wait_s=model.batch_wait_ms / 1000,
    )


def terms_to_pb(
    weights: Mapping[TenantId, float], moved: Mapping[tuple[Band, RequestClass], Iterable[RequestKey]]
) -> scheduler_pb2.Terms:
    """Say what tenants weigh now, and which requests belong to another band or class than they waited in."""
    return scheduler_pb2.Terms(
        weights={str(tenant): weight for tenant, weight in weights.items()},
        requeued=[
            scheduler_pb2.Requeue(
                keys=map(convert.key_to_pb, keys),
                band=cast(types_pb2.Band, band),
                request_class=cast(types_pb2.RequestClass, kind.value),
            )
            for (band, kind), keys in moved.items()
        ],
    )


def placement_from_pb(placement: scheduler_pb2.Placement, band: Band) -> Placement:
    return Placement(
        key=convert.key_from_pb(placement.key),
        band=band,
        worker=WorkerId(placement.worker),
        epoch=Epoch(placement.epoch),
        address=placement.address,
        term=placement.term,
        seq=placement.seq,
        cached_tokens=placement.cached_tokens,
        miss_reason=convert.miss_reason_from_pb(placement.miss_reason),
        first_miss_token=placement.first_miss_token,
    )


def submit_to_pb(handle: int, placement: Placement, one: Submission) -> worker_pb2.Submit:
    return worker_pb2.Submit(
        handle=handle,
        key=convert.key_to_pb(placement.key),
        term=placement.term,
        seq=placement.seq,
        epoch=placement.epoch,
        tenant=one.tenant,
        band=cast(types_pb2.Band, one.band),
        n=one.num_choices,
        prompt_ids=one.prompt_ids,
        block_hashes=b"".join(one.block_hashes),
        salt=one.salt,
        sampling=convert.sampling_to_pb(one.sampling),
        max_output_tokens=one.stop.max_output_tokens,
        min_output_tokens=one.stop.min_output_tokens,
        stop_token_ids=sorted(one.stop.stop_token_ids),
        limits=convert.limits_to_pb(one.limits),
        cache_opt_out=one.cache_opt_out,
        traceparent=one.traceparent,
        num_prompt_logprobs=one.num_prompt_logprobs,
    )


def tops_from_pb(scored: worker_pb2.PromptScored) -> Tops:
    """Return the alternatives of each token of `scored`."""
    num_tokens = len(scored.logprobs)
    width = len(scored.top_ids) // max(1, num_tokens)
    pairs = list(zip(scored.top_ids, scored.top_logprobs, strict=True))
    return [tuple(pairs[index * width : (index + 1) * width]) for index in range(num_tokens)]


def end_from_pb(ended: worker_pb2.Ended) -> EndReport:
    return EndReport(
        usage=convert.usage_from_pb(ended.usage),
        computed_tokens=ended.computed_tokens,
        page_seconds=ended.page_seconds,
        peak_pages=ended.peak_pages,
        queue_s=ended.queue_s,
        prefill_s=ended.prefill_s,
        decode_s=ended.decode_s,
        preemptions=ended.preemptions,
        failure=convert.failure_from_pb(ended.failure) if ended.HasField("failure") else None,
    )
