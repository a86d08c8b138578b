"""Put a guard around every call of a gRPC server, whatever its streaming kind.

Knows the four kinds of handler; does not know what a guard does.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.chassis.grpc import SETTINGS
from services.domain.errors import InvalidField

Guard = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]


def guarded(handler: grpc.RpcMethodHandler, guard: Guard) -> grpc.RpcMethodHandler:
    """Return `handler` with each call running inside `guard(context)`; its kind stays.

    A single request that is too large or no message of its type is refused inside the guard too: gRPC itself
    would say that a resource is exhausted, or UNKNOWN with the name of a Python class.
    """
    streams_in, streams_out = handler.request_streaming, handler.response_streaming
    kind = f"{'stream' if streams_in else 'unary'}_{'stream' if streams_out else 'unary'}"
    inner = getattr(handler, kind)
    if streams_out and inspect.isasyncgenfunction(inner):
        behaviour: Any = _guarded_generator(inner, guard)
    elif inspect.iscoroutinefunction(inner):
        behaviour = _guarded_coroutine(inner, guard)
    else:
        return handler  # A handler of the library's own, run in a thread (reflection).
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    read = handler.request_deserializer
    return make(behaviour, read if streams_in or read is None else _tried(read), handler.response_serializer)


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands for a request that was not read."""

    error: InvalidField


def _tried(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def tried(data: bytes) -> Any:
        if len(data) > SETTINGS.max_message_bytes:
            rule = f"must be at most {SETTINGS.max_message_bytes} bytes, got {len(data)}"
            return _Refused(InvalidField("request", rule))
        try:
            return read(data)
        except DecodeError as fault:
            rule = f"must be a message of this method's type, got {len(data)} bytes that are none"
            error = InvalidField("request", rule)
            error.__cause__ = fault
            return _Refused(error)

    return tried


def _checked(request: Any) -> Any:
    if isinstance(request, _Refused):
        raise request.error
    return request


def _guarded_coroutine(
    inner: Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]], guard: Guard
) -> Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with guard(context):
            return await inner(_checked(request), context)

    return call


def _guarded_generator(
    inner: Callable[[Any, grpc.aio.ServicerContext], Any], guard: Guard
) -> Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with guard(context), aclosing(inner(_checked(request), context)) as responses:
            async for response in responses:
                yield response

    return call
