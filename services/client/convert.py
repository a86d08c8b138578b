"""Turn the gateway's messages into the client's values.

Knows both vocabularies and nothing else. A message of a newer server that has no value here is skipped.
"""

from collections.abc import Iterable

from protos.gateway.v1 import gateway_pb2
from services.client.errors import IncompleteStream
from services.client.values import (
    Delta,
    Echo,
    Event,
    Failed,
    Finished,
    Model,
    Queued,
    Receipt,
    RequestState,
    Running,
    Started,
    StillWaiting,
    TokenLogprob,
    Tokens,
    TopLogprob,
)
from services.domain.degradation import Degraded, Step
from services.rpc.convert import failure_from_pb, finish_from_pb, miss_reason_from_pb, usage_from_pb


def event_from_pb(response: gateway_pb2.GenerateResponse) -> Event | None:
    """Return the event, or None for a kind that this client does not know."""
    match response.WhichOneof("event"):
        case "delta":
            return _delta(response.delta)
        case "echo":
            return _echo(response.echo)
        case "queued":
            return _queued(response.queued)
        case "still_waiting":
            return StillWaiting()
        case "started":
            return _started(response.started)
        case "finished":
            return _finished(response.finished)
        case "receipt":
            return _receipt(response.receipt)
        case _:
            return None


def model_from_pb(model: gateway_pb2.Model) -> Model:
    return Model(
        name=model.name,
        revision=model.revision,
        max_context_tokens=model.max_context_tokens,
        num_workers=model.num_workers,
    )


def tokens_from_pb(response: gateway_pb2.TokenizeResponse) -> Tokens:
    return Tokens(
        ids=tuple(response.ids),
        token_bytes=tuple(response.bytes),
        max_context_tokens=response.max_context_tokens,
    )


def request_state_from_pb(response: gateway_pb2.GetRequestResponse) -> RequestState:
    """Return what became of the request.

    Raises:
        IncompleteStream: The server named a state that this client does not know.
    """
    match response.WhichOneof("state"):
        case "queued":
            return _queued(response.queued)
        case "running":
            running = response.running
            return Running(
                worker=running.worker, attempt=running.attempt, output_tokens=running.output_tokens
            )
        case "receipt":
            return _receipt(response.receipt)
        case "failure":
            return Failed(failure_from_pb(response.failure))
        case _:
            raise IncompleteStream("the server named a state that this client does not know")


def _queued(queued: gateway_pb2.Queued) -> Queued:
    known = queued.HasField("expected_wait_ms")
    return Queued(
        request_id=queued.request_id,
        position=queued.position,
        expected_wait_s=queued.expected_wait_ms / 1000 if known else None,
    )


def _started(started: gateway_pb2.Started) -> Started:
    return Started(
        request_id=started.request_id,
        model=started.model,
        model_revision=started.model_revision,
        prompt_tokens=started.prompt_tokens,
        cached_tokens=started.cached_tokens,
        seed=started.seed,
        cut_tokens=started.cut_tokens,
        degraded=_degraded(started.degraded),
    )


def _echo(echo: gateway_pb2.Echo) -> Echo:
    return Echo(text=echo.text, token_ids=tuple(echo.token_ids), logprobs=tuple(map(_logprob, echo.logprobs)))


def _degraded(degraded: Iterable[gateway_pb2.Degraded]) -> tuple[Degraded, ...]:
    known = {step.value for step in Step}
    return tuple(Degraded(Step(one.step), one.asked, one.served) for one in degraded if one.step in known)


def _delta(delta: gateway_pb2.Delta) -> Delta:
    return Delta(
        choice=delta.choice,
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        logprobs=tuple(map(_logprob, delta.logprobs)),
    )


def _logprob(item: gateway_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple(TopLogprob(other.token_id, other.token, other.logprob) for other in item.top)
    return TokenLogprob(item.token_id, item.token, item.logprob, top)


def _finished(finished: gateway_pb2.Finished) -> Finished:
    return Finished(
        choice=finished.choice,
        reason=finish_from_pb(finished.reason),
        stop_string=finished.stop_string or None,
        output_tokens=finished.output_tokens,
    )


def _receipt(receipt: gateway_pb2.Receipt) -> Receipt:
    return Receipt(
        request_id=receipt.request_id,
        usage=usage_from_pb(receipt.usage),
        computed_tokens=receipt.computed_tokens,
        queue_ms=receipt.queue_ms,
        prefill_ms=receipt.prefill_ms,
        decode_ms=receipt.decode_ms,
        ttft_ms=receipt.ttft_ms,
        tpot_ms=receipt.tpot_ms,
        preemptions=receipt.preemptions,
        page_seconds=receipt.page_seconds,
        worker=receipt.worker,
        attempts=receipt.attempts,
        miss_reason=miss_reason_from_pb(receipt.cache.miss_reason),
        first_miss_token=receipt.cache.first_miss_token,
        client_label=receipt.client_label,
        exact=receipt.exact,
        degraded=_degraded(receipt.degraded),
        cost_nanos=receipt.cost_nanos if receipt.HasField("cost_nanos") else None,
    )
