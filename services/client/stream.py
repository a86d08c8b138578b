"""The streams that `generate` returns, for threads and for asyncio.

Read a gRPC call as typed events and end in exactly one of three ways: whole (a receipt came), a typed error
of the server, or `IncompleteStream`. Know nothing of how a call is made. A stream belongs to one reader.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

import grpc

from protos.gateway.v1 import gateway_pb2
from services.chassis.errors import from_rpc_error
from services.client.convert import event_from_pb
from services.client.errors import IncompleteStream
from services.client.transcript import Transcript
from services.client.values import Completion, Delta, Event, Receipt, Started
from services.domain.errors import ServeError

_CANCELLED_HERE = "the stream was cancelled here"


class _Reading:
    """What is known of one generation while its call is read."""

    def __init__(self, call: grpc.Call | grpc.aio.UnaryStreamCall) -> None:
        self._call = call
        self._transcript = Transcript()
        self._error: ServeError | None = None
        self._cancelled = False
        self._done = False

    @property
    def started(self) -> Started | None:
        """The start of the request, once it came."""
        return self._transcript.started

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, once it came."""
        return self._transcript.receipt

    def cancel(self) -> None:
        """Stop the request; harmless when it has ended. An `EventStream` may be told by another thread."""
        self._cancelled = True
        self._call.cancel()

    def _end(self) -> None:
        """Note that the server has ended the stream without an error."""
        self._done = True
        try:
            self._transcript.check_whole()
        except IncompleteStream as error:
            self._error = error
            raise


class EventStream(_Reading):
    """Events of one generation; iterate it, or read it with `text` or `completion`.

    Leaving its context cancels what still runs. After an error every further read raises that error again.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """Return the next event.

        Raises:
            ServeError: The server ended the request; the type tells why.
            IncompleteStream: It ended without a receipt.
        """
        if self._error is not None:
            raise self._error
        while not self._done:
            response = self._read()
            event = None if response is None else event_from_pb(response)
            if event is not None:
                self._transcript.add(event)
                return event
        raise StopIteration

    def text(self, choice: int = 0) -> Iterator[str]:
        """Yield the text of one choice, piece by piece, to the end of the stream."""
        for event in self:
            if isinstance(event, Delta) and event.choice == choice and event.text:
                yield event.text

    def completion(self) -> Completion:
        """Read to the end and return the whole answer, with what was read before."""
        for _ in self:
            pass
        return self._transcript.completion()

    def _read(self) -> gateway_pb2.GenerateResponse | None:
        try:
            response: gateway_pb2.GenerateResponse = next(self._call)
            return response
        except StopIteration:
            self._end()
            return None
        except grpc.RpcError as exc:
            self._error = IncompleteStream(_CANCELLED_HERE) if self._cancelled else from_rpc_error(exc)
            raise self._error from exc


class AsyncEventStream(_Reading):
    """Events of one generation; iterate it, or read it with `text` or `completion`.

    Leaving its context cancels what still runs; so does cancelling the task that reads. After an error every
    further read raises that error again.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises:
            ServeError: The server ended the request; the type tells why.
            IncompleteStream: It ended without a receipt.
        """
        if self._error is not None:
            raise self._error
        while not self._done:
            response = await self._read()
            event = None if response is None else event_from_pb(response)
            if event is not None:
                self._transcript.add(event)
                return event
        raise StopAsyncIteration

    async def text(self, choice: int = 0) -> AsyncIterator[str]:
        """Yield the text of one choice, piece by piece, to the end of the stream."""
        async for event in self:
            if isinstance(event, Delta) and event.choice == choice and event.text:
                yield event.text

    async def completion(self) -> Completion:
        """Read to the end and return the whole answer, with what was read before."""
        async for _ in self:
            pass
        return self._transcript.completion()

    async def _read(self) -> gateway_pb2.GenerateResponse | None:
        try:
            response = await self._call.read()
            if response is not grpc.aio.EOF:
                received: gateway_pb2.GenerateResponse = response
                return received
        except asyncio.CancelledError as exc:
            # grpc raises this too when the call, not the task, was cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._error = IncompleteStream(_CANCELLED_HERE if self._cancelled else "the call was cancelled")
            raise self._error from exc
        except grpc.aio.AioRpcError as exc:
            self._error = from_rpc_error(exc)
            raise self._error from exc
        self._end()
        return None
