"""The worker's half of `worker.v1` as values: Submit in, StepOutputs out.

Checks what the message alone can tell; ranges against model and pool are the engine's (`engine.validation`).
"""

from protos.worker.v1 import worker_pb2 as pb
from services.domain.errors import InvalidField
from services.domain.generation import MAX_BANDS, Band, StopParams
from services.domain.ids import RequestKey, TenantId
from services.rpc import convert
from worker.engine.commands import Submit
from worker.engine.outputs import (
    Accepted,
    ChoiceEnded,
    Ended,
    Event,
    Preempted,
    PromptScored,
    Refused,
    Started,
)
from worker.gateway_step import HANDLE_MASK, GatewayStep

MAX_NAME_CHARS = 256
MAX_SALT_BYTES = 64
MAX_STOP_IDS = 256


def submit_from_pb(submit: pb.Submit, key: RequestKey, handle: int) -> Submit:
    """Read a Submit.

    Raises:
        InvalidField: A field is malformed; which and how.
    """
    _check_names(submit)
    if len(submit.salt) > MAX_SALT_BYTES:
        raise InvalidField("salt", f"must be at most {MAX_SALT_BYTES} bytes, got {len(submit.salt)}")
    if len(submit.stop_token_ids) > MAX_STOP_IDS:
        raise InvalidField(
            "stop_token_ids", f"must be at most {MAX_STOP_IDS}, got {len(submit.stop_token_ids)}"
        )
    return Submit(
        handle=handle,
        key=key,
        tenant=TenantId(submit.tenant),
        band=_band_from_pb(submit.band),
        prompt_ids=tuple(submit.prompt_ids),
        num_choices=submit.n,
        output_ids=tuple(tuple(choice.ids) for choice in submit.output_ids),
        block_hashes=convert.hashes_from_pb(submit.block_hashes),
        salt=submit.salt,
        sampling=convert.sampling_from_pb(submit.sampling),
        stop=StopParams(
            max_output_tokens=submit.max_output_tokens,
            min_output_tokens=submit.min_output_tokens,
            stop_token_ids=frozenset(submit.stop_token_ids),
        ),
        limits=convert.limits_from_pb(submit.limits),
        cache_opt_out=submit.cache_opt_out,
        num_prompt_logprobs=(submit.num_prompt_logprobs if submit.HasField("num_prompt_logprobs") else None),
    )


def _check_names(submit: pb.Submit) -> None:
    names = (("key.request_id", submit.key.request_id), ("tenant", submit.tenant))
    for field, text in names:
        if not 0 < len(text) <= MAX_NAME_CHARS:
            raise InvalidField(field, f"must have 1 to {MAX_NAME_CHARS} characters, got {len(text)}")
    if submit.key.attempt < 1:
        raise InvalidField("key.attempt", f"must be at least 1, got {submit.key.attempt}")


def _band_from_pb(rank: int) -> Band:
    if not 1 <= rank <= MAX_BANDS:
        raise InvalidField("band", f"must be a rank from 1 to {MAX_BANDS}, got {rank}")
    return Band(rank)


def step_to_pb(step: GatewayStep) -> pb.StepOutputs:
    """Write one step of one gateway; the arrays go in as they are."""
    tokens = step.tokens
    outputs = pb.StepOutputs(
        step=step.step,
        handles=[handle & HANDLE_MASK for handle in tokens.handles],
        choices=tokens.choices,
        first_position=tokens.first_positions,
        counts=tokens.counts,
        token_ids=tokens.token_ids,
        logprobs=tokens.logprobs,
    )
    for index, top in tokens.tops:
        outputs.tops.add(index=index, token_ids=top.token_ids, logprobs=top.logprobs)
    for event in step.events:
        _add_event(outputs.events.add(handle=event.handle & HANDLE_MASK), event)
    return outputs


def _add_event(message: pb.Event, event: Event) -> None:
    match event:
        case Accepted():
            message.accepted.SetInParent()
        case Started():
            message.started.cached_tokens = event.cached_tokens
        case Refused():
            message.refused.CopyFrom(convert.failure_to_pb(event.error))
        case Preempted():
            message.preempted.SetInParent()
        case PromptScored():
            scored = message.prompt_scored
            scored.first_position = event.first_position
            scored.logprobs.extend(event.logprobs)
            for top in event.tops:
                scored.top_ids.extend(top.token_ids)
                scored.top_logprobs.extend(top.logprobs)
        case ChoiceEnded():
            message.choice_ended.choice = event.choice
            message.choice_ended.reason = convert.finish_to_pb(event.reason)
            message.choice_ended.output_tokens = event.output_tokens
        case Ended():
            message.ended.CopyFrom(_ended_to_pb(event))


def _ended_to_pb(end: Ended) -> pb.Ended:
    return pb.Ended(
        usage=convert.usage_to_pb(end.usage),
        computed_tokens=end.computed_tokens,
        page_seconds=end.page_seconds,
        peak_pages=end.peak_pages,
        queue_s=end.queue_s,
        prefill_s=end.prefill_s,
        decode_s=end.decode_s,
        preemptions=end.preemptions,
        failure=None if end.error is None else convert.failure_to_pb(end.error),
    )
