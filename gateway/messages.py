"""The public door's messages as requests, and events as its messages.

Checks nothing but that enums are known; what a value may be is the use case's.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeVar, cast

from google.protobuf.message import Message

from gateway.core.events import (
    Delta,
    Echo,
    Event,
    Finished,
    Queued,
    Receipt,
    Started,
    StillWaiting,
    TokenRecord,
)
from gateway.core.request import ChatTurn, GenerationRequest, SamplingOptions
from protos.gateway.v1 import gateway_pb2 as pb
from protos.types.v1 import types_pb2
from services.domain.degradation import Degraded
from services.domain.errors import InvalidField
from services.domain.generation import RequestClass
from services.rpc import convert
from services.rpc.tenant_messages import band_name

E = TypeVar("E", bound=IntEnum)


def request_from_pb(request: pb.GenerateRequest) -> GenerationRequest:
    """Read a request; absent fields become None.

    Raises:
        InvalidField: An enum has an unknown value.
    """
    kind = request.WhichOneof("input")
    sampling = request.sampling
    return GenerationRequest(
        model=request.model,
        prompt=request.prompt if kind == "prompt" else None,
        token_ids=tuple(request.token_ids.ids) if kind == "token_ids" else None,
        chat=chat_from_pb(request.chat) if kind == "chat" else None,
        sampling=SamplingOptions(
            temperature=_optional(sampling, "temperature"),
            top_p=_optional(sampling, "top_p"),
            top_k=_optional(sampling, "top_k"),
            min_p=_optional(sampling, "min_p"),
            repetition_penalty=_optional(sampling, "repetition_penalty"),
            presence_penalty=_optional(sampling, "presence_penalty"),
            frequency_penalty=_optional(sampling, "frequency_penalty"),
            logit_bias=dict(sampling.logit_bias),
            seed=_optional(sampling, "seed"),
        ),
        num_choices=_optional(request, "n"),
        max_output_tokens=_optional(request, "max_output_tokens"),
        min_output_tokens=_optional(request, "min_output_tokens"),
        stop=tuple(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        include_stop=request.include_stop,
        num_logprobs=_optional(request, "logprobs"),
        return_token_ids=request.return_token_ids,
        echo=request.echo,
        band=request.band_name.lower() or (band_name(request.band) if request.band else None),
        request_class=_enum("request_class", RequestClass, request.request_class),
        limits=convert.limits_from_pb(request.limits),
        cut_left=_cut_left(request.long_prompt),
        client_label=request.client_label,
        idempotency_key=request.idempotency_key,
        cache_opt_out=request.cache_opt_out,
        cache_salt=request.cache_salt,
    )


def _optional(message: Message, name: str):  # type: ignore[no-untyped-def]
    return getattr(message, name) if message.HasField(name) else None


def _enum(field: str, kind: type[E], value: int) -> E | None:
    if not value:
        return None
    try:
        return kind(value)
    except ValueError as exc:
        raise InvalidField(field, f"must be 1 to {len(kind)}, got {value}") from exc


def _cut_left(value: int) -> bool:
    if value not in pb.LongPrompt.values():
        raise InvalidField("long_prompt", f"must be 1 to {max(pb.LongPrompt.values())}, got {value}")
    return value == pb.LONG_PROMPT_CUT_LEFT


def chat_from_pb(chat: pb.ChatMessages) -> tuple[ChatTurn, ...]:
    return tuple(
        ChatTurn(role=turn.role, content=turn.content, name=_optional(turn, "name")) for turn in chat.messages
    )


def event_to_pb(event: Event, *, with_ids: bool, with_logprobs: bool) -> pb.GenerateResponse:
    """Turn one event into its message."""
    if isinstance(event, Delta):
        ids, logprobs = _tokens_to_pb(event.tokens, with_ids, with_logprobs)
        delta = pb.Delta(choice=event.choice, text=event.text, token_ids=ids, logprobs=logprobs)
        return pb.GenerateResponse(delta=delta)
    if isinstance(event, Echo):
        ids, logprobs = _tokens_to_pb(event.tokens, with_ids, with_logprobs)
        return pb.GenerateResponse(echo=pb.Echo(text=event.text, token_ids=ids, logprobs=logprobs))
    if isinstance(event, Finished):
        return pb.GenerateResponse(
            finished=pb.Finished(
                choice=event.choice,
                reason=convert.finish_to_pb(event.reason),
                stop_string=event.stop_string or "",
                output_tokens=event.output_tokens,
            )
        )
    if isinstance(event, Started):
        return pb.GenerateResponse(
            started=pb.Started(
                request_id=event.request_id,
                model=event.model,
                model_revision=event.model_revision,
                prompt_tokens=event.prompt_tokens,
                cached_tokens=event.cached_tokens,
                seed=event.seed,
                cut_tokens=event.cut_tokens,
                degraded=_degraded_to_pb(event.degraded),
            )
        )
    if isinstance(event, Queued):
        return pb.GenerateResponse(queued=queued_to_pb(event))
    if isinstance(event, StillWaiting):
        return pb.GenerateResponse(still_waiting=pb.StillWaiting())
    return pb.GenerateResponse(receipt=receipt_to_pb(event))


def _tokens_to_pb(
    tokens: Sequence[TokenRecord], with_ids: bool, with_logprobs: bool
) -> tuple[list[int], list[pb.TokenLogprob]]:
    ids = [token.token_id for token in tokens] if with_ids else []
    return ids, _logprobs_to_pb(tokens) if with_logprobs else []


def _logprobs_to_pb(tokens: Sequence[TokenRecord]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token_id=token.token_id,
            token=token.token_bytes,
            logprob=token.logprob or 0.0,
            top=[pb.TopLogprob(token_id=one, token=data, logprob=value) for one, data, value in token.top],
        )
        for token in tokens
    ]


def _degraded_to_pb(degraded: Iterable[Degraded]) -> list[pb.Degraded]:
    return [
        pb.Degraded(step=cast(types_pb2.DegradationStep, one.step.value), asked=one.asked, served=one.served)
        for one in degraded
    ]


def queued_to_pb(queued: Queued) -> pb.Queued:
    wait_s = queued.expected_wait_s
    return pb.Queued(
        request_id=queued.request_id,
        position=queued.position,
        expected_wait_ms=None if wait_s is None else round(wait_s * 1000),
    )


def receipt_to_pb(receipt: Receipt) -> pb.Receipt:
    return pb.Receipt(
        request_id=receipt.request_id,
        usage=convert.usage_to_pb(receipt.usage),
        queue_ms=receipt.queue_s * 1000,
        prefill_ms=receipt.prefill_s * 1000,
        decode_ms=receipt.decode_s * 1000,
        ttft_ms=receipt.ttft_s * 1000,
        tpot_ms=receipt.tpot_s * 1000,
        preemptions=receipt.preemptions,
        page_seconds=receipt.page_seconds,
        worker=receipt.worker,
        attempts=receipt.attempts,
        cache=pb.CacheReport(
            miss_reason=convert.miss_reason_to_pb(receipt.miss_reason),
            first_miss_token=receipt.first_miss_token,
        ),
        computed_tokens=receipt.computed_tokens,
        client_label=receipt.client_label,
        exact=receipt.exact,
        degraded=_degraded_to_pb(receipt.degraded),
        cost_nanos=receipt.cost_nanos,
    )
