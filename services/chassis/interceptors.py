"""Put a guard around every call of a gRPC server, whatever its streaming kind.

Knows the four kinds of handler; does not know what a guard does.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import grpc

Guard = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]


def guarded(handler: grpc.RpcMethodHandler, guard: Guard) -> grpc.RpcMethodHandler:
    """Return `handler` with each call running inside `guard(context)`; kind and codecs stay."""
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
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _guarded_coroutine(
    inner: Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]], guard: Guard
) -> Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with guard(context):
            return await inner(request, context)

    return call


def _guarded_generator(
    inner: Callable[[Any, grpc.aio.ServicerContext], Any], guard: Guard
) -> Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with guard(context), aclosing(inner(request, context)) as responses:
            async for response in responses:
                yield response

    return call
