"""Turn shared messages into domain values and back, in one place.

Knows both vocabularies and nothing else: no defaults, no validation beyond what the types force.
"""

from typing import cast

from protos.types.v1 import types_pb2
from services.domain.block_hash import DIGEST_BYTES
from services.domain.errors import Code, ErrorDetail, InvalidField, ServeError, rebuild
from services.domain.generation import FinishReason, Limits, SamplingParams, Usage
from services.domain.ids import PROTOCOL_VERSION, BlockHash, Epoch, RequestId, RequestKey
from services.domain.miss_reason import MissReason

_FINISH = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.STOP_STRING: types_pb2.FINISH_REASON_STOP_STRING,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.BUDGET: types_pb2.FINISH_REASON_BUDGET,
}
_FINISH_BACK = {value: key for key, value in _FINISH.items()}
_MISS = {
    reason: cast(types_pb2.MissReason, types_pb2.MissReason.Value(f"MISS_REASON_{reason.name}"))
    for reason in MissReason
}
_MISS_BACK = {value: key for key, value in _MISS.items()}


def key_to_pb(key: RequestKey) -> types_pb2.RequestKey:
    return types_pb2.RequestKey(request_id=key.request_id, attempt=key.attempt)


def key_from_pb(key: types_pb2.RequestKey) -> RequestKey:
    return RequestKey(RequestId(key.request_id), key.attempt)


def peer_to_pb(name: str, epoch: Epoch, build: str) -> types_pb2.Peer:
    return types_pb2.Peer(
        name=name, epoch=epoch, protocol_version=PROTOCOL_VERSION, build=build, reads_several=True
    )


def check_peer(peer: types_pb2.Peer) -> None:
    """Refuse a peer that speaks another version of the protocol.

    Raises:
        InvalidField: `peer.protocol_version` or `peer.name` is not acceptable.
    """
    if peer.protocol_version != PROTOCOL_VERSION:
        raise InvalidField(
            "peer.protocol_version",
            f"must be {PROTOCOL_VERSION}, got {peer.protocol_version} from {peer.name} ({peer.build})",
        )
    if not peer.name or not peer.epoch:
        raise InvalidField("peer", "name and epoch must be set")


def limits_to_pb(limits: Limits) -> types_pb2.Limits:
    def ms(seconds: float | None) -> int | None:
        return None if seconds is None else max(1, round(seconds * 1000))

    return types_pb2.Limits(
        queue_ms=ms(limits.queue_s), first_token_ms=ms(limits.first_token_s), total_ms=ms(limits.total_s)
    )


def limits_from_pb(limits: types_pb2.Limits) -> Limits:
    has = limits.HasField
    return Limits(
        queue_s=limits.queue_ms / 1000 if has("queue_ms") else None,
        first_token_s=limits.first_token_ms / 1000 if has("first_token_ms") else None,
        total_s=limits.total_ms / 1000 if has("total_ms") else None,
    )


def sampling_to_pb(params: SamplingParams) -> types_pb2.Sampling:
    return types_pb2.Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        seed=params.seed,
        num_logprobs=params.num_logprobs,
    )


def sampling_from_pb(params: types_pb2.Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        seed=params.seed,
        num_logprobs=params.num_logprobs if params.HasField("num_logprobs") else None,
    )


def usage_to_pb(usage: Usage) -> types_pb2.Usage:
    return types_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )


def usage_from_pb(usage: types_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )


def finish_to_pb(reason: FinishReason) -> types_pb2.FinishReason:
    return _FINISH[reason]


def finish_from_pb(reason: types_pb2.FinishReason) -> FinishReason:
    return _FINISH_BACK[reason]


def failure_to_pb(error: ServeError) -> types_pb2.Failure:
    detail = error.detail
    return types_pb2.Failure(
        code=error.code.value,
        reason=error.reason,
        message=error.message,
        field=detail.field,
        retry_after_s=detail.retry_after_s,
        quota=detail.quota,
        usage=None if detail.usage is None else usage_to_pb(detail.usage),
        metadata=dict(detail.metadata),
    )


def failure_from_pb(failure: types_pb2.Failure) -> ServeError:
    """Rebuild the typed error; an unknown reason keeps its code and reason on the base type."""
    detail = ErrorDetail(
        field=failure.field if failure.HasField("field") else None,
        retry_after_s=failure.retry_after_s if failure.HasField("retry_after_s") else None,
        quota=failure.quota if failure.HasField("quota") else None,
        usage=usage_from_pb(failure.usage) if failure.HasField("usage") else None,
        metadata=dict(failure.metadata),
    )
    return rebuild(Code(failure.code), failure.reason, failure.message, detail)


def hashes_from_pb(joined: bytes) -> list[BlockHash]:
    """Split concatenated block hashes.

    Raises:
        InvalidField: The length is no multiple of a hash's.
    """
    if len(joined) % DIGEST_BYTES:
        raise InvalidField("block_hashes", f"length must be a multiple of {DIGEST_BYTES}, got {len(joined)}")
    return [BlockHash(joined[i : i + DIGEST_BYTES]) for i in range(0, len(joined), DIGEST_BYTES)]


def miss_reason_to_pb(reason: MissReason) -> types_pb2.MissReason:
    return _MISS[reason]


def miss_reason_from_pb(reason: types_pb2.MissReason) -> MissReason:
    """An unspecified reason, or one of a later build, is an unknown one."""
    return _MISS_BACK.get(reason, MissReason.UNKNOWN)
