"""Turn a ServeError into a gRPC status with details, and back.

The only place where a server's exceptions become statuses. Anything that is no ServeError becomes INTERNAL
with a correlation id and nothing else; what really happened stays in the server's log.
"""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from protos.types.v1 import types_pb2
from services.chassis.interceptors import guarded
from services.domain.errors import Code, ErrorDetail, ServeError, rebuild
from services.domain.generation import Usage

DOMAIN = "quire"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
RETRY_KEY = "retry-after"
"""Seconds, as in HTTP."""
DEFAULT_PUSHBACK_S = 1.0
MAX_MESSAGE_BYTES = 1024
MAX_VALUE_BYTES = 256
"""Of a field's name and of each number; all together stay well under the 16 KiB that gRPC takes."""

_log = structlog.get_logger()

_GRPC_CODES = {code: next(s for s in grpc.StatusCode if s.value[0] == code.value) for code in Code}
_CODES = {status: code for code, status in _GRPC_CODES.items()}
# A server that stops answers so to calls that it has received and not begun: nothing was done, ask elsewhere.
_CODES[grpc.StatusCode.CANCELLED] = Code.UNAVAILABLE


def to_status(error: ServeError) -> status_pb2.Status:
    """Describe `error` as google.rpc.Status with all details a caller can act on.

    What is too long for gRPC's metadata is cut: an error may repeat a name of the caller's, of any length,
    and a status that does not fit is lost with all that it says.
    """
    detail, message = error.detail, _short(error.message, MAX_MESSAGE_BYTES)
    numbers = {name: _short(value, MAX_VALUE_BYTES) for name, value in detail.metadata.items()}
    parts: list[Any] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=numbers)]
    if detail.field is not None:
        bad = error_details_pb2.BadRequest.FieldViolation(
            field=_short(detail.field, MAX_VALUE_BYTES), description=message
        )
        parts.append(error_details_pb2.BadRequest(field_violations=[bad]))
    if detail.quota is not None:
        failure = error_details_pb2.QuotaFailure.Violation(
            subject=_short(detail.quota, MAX_VALUE_BYTES), description=message
        )
        parts.append(error_details_pb2.QuotaFailure(violations=[failure]))
    if detail.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(detail.retry_after_s * 1000))
        parts.append(retry)
    if detail.usage is not None:
        parts.append(
            types_pb2.Usage(
                prompt_tokens=detail.usage.prompt_tokens,
                cached_tokens=detail.usage.cached_tokens,
                output_tokens=detail.usage.output_tokens,
            )
        )
    status = status_pb2.Status(code=error.code.value, message=message)
    for part in parts:
        status.details.add().Pack(part)
    return status


def _short(text: str, most: int) -> str:
    """Return at most `most` bytes of a text, and a sign where it was more."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[:most].decode("utf-8", "ignore") + "…"


def trailing_metadata(error: ServeError) -> tuple[tuple[str, str | bytes], ...]:
    """Return what goes with the status: its details, rate limits and when to come back."""
    details: list[tuple[str, str | bytes]] = [(DETAILS_KEY, to_status(error).SerializeToString())]
    details += error.detail.rate_limits.items()
    if error.detail.retry_after_s is not None:
        details.append((RETRY_KEY, str(max(1, math.ceil(error.detail.retry_after_s)))))
    if error.code is not Code.UNAVAILABLE:
        return tuple(details)
    wait_s = DEFAULT_PUSHBACK_S if error.detail.retry_after_s is None else error.detail.retry_after_s
    return (*details, (PUSHBACK_KEY, str(round(wait_s * 1000))))


async def abort(context: grpc.aio.ServicerContext, error: ServeError) -> None:
    """End the call with `error`'s status and what the handler set to be told. Never returns: gRPC raises."""
    told = dict(context.trailing_metadata() or ()) | dict(trailing_metadata(error))
    message = _short(error.message, MAX_MESSAGE_BYTES)
    await context.abort(_GRPC_CODES[error.code], message, tuple(told.items()))


def from_rpc_error(error: grpc.RpcError) -> ServeError:
    """Rebuild the typed error from a failed call; a foreign status keeps its code and message."""
    code, message = error.code(), error.details() or ""
    try:
        status = rpc_status.from_call(_Trailers(error))
    except ValueError:
        status = None
    if status is None:
        return rebuild(_CODES.get(code, Code.INTERNAL), code.name, message, ErrorDetail())
    return from_status(status)


def from_status(status: status_pb2.Status) -> ServeError:
    """Rebuild the typed error; an unknown reason keeps its code and reason on the base type."""
    values: dict[str, Any] = {}
    code_name = next((s.name for s in grpc.StatusCode if s.value[0] == status.code), "UNKNOWN")
    reason = code_name
    for packed in status.details:
        reason = _read_detail(packed, values) or reason
    code = Code(status.code) if status.code in Code._value2member_map_ else Code.INTERNAL
    return rebuild(code, reason, status.message, ErrorDetail(**values))


def _read_detail(packed: AnyMessage, values: dict[str, Any]) -> str | None:
    """Add one detail to `values`; return the reason where it holds one."""
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    quota, retry, usage = error_details_pb2.QuotaFailure(), error_details_pb2.RetryInfo(), types_pb2.Usage()
    if packed.Unpack(info):
        values["metadata"] = dict(info.metadata)
        return str(info.reason)
    if packed.Unpack(bad) and bad.field_violations:
        values["field"] = bad.field_violations[0].field
    elif packed.Unpack(quota) and quota.violations:
        values["quota"] = quota.violations[0].subject
    elif packed.Unpack(retry):
        values["retry_after_s"] = retry.retry_delay.ToMilliseconds() / 1000
    elif packed.Unpack(usage):
        values["usage"] = Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )
    return None


class _Trailers:
    """What rpc_status reads, from an error of either the sync or the aio API."""

    def __init__(self, error: grpc.RpcError) -> None:
        self._error = error

    def code(self) -> grpc.StatusCode:
        return self._error.code()

    def details(self) -> str:
        return self._error.details() or ""

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return tuple(self._error.trailing_metadata() or ())


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Give every call a terminal status: a ServeError its own, anything else INTERNAL and an id.

    Cancellation passes through when the call was cancelled. A handler that raises CancelledError by itself
    has failed like any other.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        @asynccontextmanager
        async def guard(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            try:
                yield
            except ServeError as error:
                await abort(context, error)
            except grpc.aio.AbortError:
                raise
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                await abort(context, internal_error(method, exc))
            except Exception as exc:
                if context.done() or context.cancelled():
                    raise  # The peer is gone: nobody can be told.
                await abort(context, internal_error(method, exc))

        return guarded(handler, guard)


def internal_error(method: str, exc: BaseException) -> ServeError:
    """Log `exc` with its traceback under a fresh correlation id and return what a caller may see."""
    correlation_id = uuid.uuid4().hex
    _log.error("call_failed", method=method, correlation_id=correlation_id, exc_info=exc)
    return ServeError(
        f"internal error, correlation id {correlation_id}",
        ErrorDetail(metadata={"correlation_id": correlation_id}),
    )
