"""The client of Quire for asyncio.

Makes calls and turns what comes back into values and typed errors; does not retry, and keeps no state but its
channel. Needs neither torch nor any of the services' packages.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from services.chassis.errors import from_rpc_error
from services.chassis.grpc import create_channel
from services.client.connection import (
    CHANNEL_OPTIONS,
    DEFAULT_TARGET,
    GENERATE_TIMEOUT_S,
    UNARY_TIMEOUT_S,
    Connection,
)
from services.client.convert import model_from_pb, request_state_from_pb, tokens_from_pb
from services.client.request import Options, generate_request, tokenize_request
from services.client.stream import AsyncEventStream
from services.client.values import Completion, Input, Message, Model, RequestState, Tokens
from services.domain.errors import InvalidField


class AsyncClient:
    """Calls a gateway; close it, or use it as a context manager.

    Example:
        async with AsyncClient(model="smollm2-135m-instruct") as client:
            async with client.generate("Once upon a time", max_output_tokens=64) as stream:
                async for piece in stream.text():
                    print(piece, end="", flush=True)
            print(stream.receipt.usage)
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = GENERATE_TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a connection; it is opened by the first call.

        Args:
            target: `host:port` of a gateway.
            api_key: Without one a gateway on loopback takes the caller for the tenant `local`.
            model: Used where a call names none.
            timeout_s: Seconds that a generation may take where the call does not say.
            credentials: TLS, e.g. `grpc.ssl_channel_credentials()`; None is plain text.
            metadata: Headers sent with every call, e.g. `traceparent`.
        """
        self._connection = Connection(
            target=target,
            api_key=api_key,
            model=model,
            timeout_s=timeout_s,
            credentials=credentials,
            metadata=dict(metadata or {}),
        )
        self._channel = _channel(self._connection)
        self._stub = gateway_pb2_grpc.GenerateServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs and close the channel."""
        await self._channel.close()

    def generate(
        self,
        prompt: Input,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncEventStream:
        """Start a generation and return its stream; errors of the server arise when it is read.

        Args:
            prompt: Text, token ids or chat messages.
            timeout_s: Seconds from now to the receipt.
            options: See `Options`.

        Raises:
            InvalidField: The model is missing, or an option has a type or size that cannot be sent.
        """
        request = generate_request(self._connection.model_for(model), prompt, **options)
        call = self._stub.Generate(
            request,
            timeout=self._connection.deadline_for(timeout_s),
            metadata=self._connection.call_metadata(),
        )
        return AsyncEventStream(call)

    async def generate_text(
        self,
        prompt: Input,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Generate and return the whole answer; `.text` is its first choice.

        Raises:
            ServeError: See `services.domain.errors`; `IncompleteStream` when no receipt came.
        """
        async with self.generate(prompt, model=model, timeout_s=timeout_s, **options) as stream:
            return await stream.completion()

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Answer a chat; append `.message` of the answer to `messages` for the next turn.

        Raises:
            InvalidField: `messages` is empty.
            ServeError: As for `generate_text`.
        """
        if not messages:
            raise InvalidField("chat.messages", "must hold at least one message")
        return await self.generate_text(messages, model=model, timeout_s=timeout_s, **options)

    async def models(self) -> tuple[Model, ...]:
        """List the models that can be called now."""
        response = await self._unary(self._stub.ListModels, gateway_pb2.ListModelsRequest())
        return tuple(model_from_pb(model) for model in response.models)

    async def tokenize(
        self, prompt: str | Sequence[Message], *, model: str | None = None, return_bytes: bool = False
    ) -> Tokens:
        """Turn text or chat messages into token ids, exactly as `generate` would."""
        request = tokenize_request(self._connection.model_for(model), prompt, return_bytes)
        return tokens_from_pb(await self._unary(self._stub.Tokenize, request))

    async def get_request(self, request_id: str) -> RequestState:
        """Say what became of a request.

        Raises:
            UnknownRequest: This tenant has none of that id.
        """
        request = gateway_pb2.GetRequestRequest(request_id=request_id)
        return request_state_from_pb(await self._unary(self._stub.GetRequest, request))

    async def _unary(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=UNARY_TIMEOUT_S, metadata=self._connection.call_metadata())
        except grpc.RpcError as exc:
            raise from_rpc_error(exc) from exc


def _channel(connection: Connection) -> grpc.aio.Channel:
    return create_channel(connection.target, credentials=connection.credentials, options=CHANNEL_OPTIONS)
