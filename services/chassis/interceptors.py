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

from services.domain.errors import InvalidField

Guard = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]


def guarded(handler: grpc.RpcMethodHandler, guard: Guard) -> grpc.RpcMethodHandler:
    """Return `handler` with each call running inside `guard(context)`; its kind stays.

    A single request that is no message of its type is refused inside the guard too: gRPC itself would answer
    UNKNOWN, with the name of a Python class.
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
class _Unreadable:
    """Stands for a request that could not be read."""

    fault: DecodeError


def _tried(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def tried(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError as fault:
            return _Unreadable(fault)

    return tried


def _checked(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise InvalidField("request", "must be a message of this method's type") from request.fault
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
