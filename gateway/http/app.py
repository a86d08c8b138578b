"""The OpenAI-compatible door: /v1/models, /v1/completions, /v1/chat/completions.

Knows HTTP only: who calls, what a body means and how an answer looks. The work is the same use case that
the gRPC door calls. Every route but none is open: each asks for the caller first.
"""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.core.auth import Authenticator
from gateway.core.request import Caller, GenerationRequest
from gateway.http.answers import Answer, Events
from gateway.http.errors import BodyTooLarge, body_of, headers_of, status_of
from gateway.http.owner import ClientGone, while_connected
from gateway.http.parse import Call, parse_chat, parse_completion
from gateway.http.render import ChatRenderer, CompletionRenderer, Renderer
from services.domain.errors import InvalidField, ServeError, UnknownModel

IGNORED_HEADER = "x-quire-ignored-fields"
REQUEST_HEADER = "x-request-id"
LOOPBACK = frozenset({"127.0.0.1", "::1"})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What /v1/models tells of one model."""

    name: str
    revision: str
    max_context_tokens: int


class UseCase(Protocol):
    """What the door needs of the gateway."""

    def run(
        self,
        request: GenerationRequest,
        caller: Caller,
        *,
        deadline_s: float | None = None,
        traceparent: str | None = None,
    ) -> Events: ...


def build_app(
    generate: UseCase,
    authenticator: Authenticator,
    models: Callable[[], Sequence[ModelCard]],
    *,
    max_body_bytes: int,
) -> Starlette:
    """Return the ASGI application.

    Args:
        generate: The use case.
        authenticator: Says who calls.
        models: Lists what can be called now.
        max_body_bytes: A larger body is refused with 413 before it is parsed.
    """
    door = _Door(generate, authenticator, models, max_body_bytes)
    return Starlette(
        routes=[
            Route("/v1/models", door.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", door.get_model, methods=["GET"]),
            Route("/v1/completions", door.completions, methods=["POST"]),
            Route("/v1/chat/completions", door.chat, methods=["POST"]),
        ],
        exception_handlers={ServeError: _on_serve_error, ClientGone: _on_gone, Exception: _on_bug},
    )


class _Door:
    def __init__(
        self,
        generate: UseCase,
        authenticator: Authenticator,
        models: Callable[[], Sequence[ModelCard]],
        max_body_bytes: int,
    ) -> None:
        self._generate = generate
        self._authenticator = authenticator
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def list_models(self, request: Request) -> Response:
        self._caller(request)
        return _json({"object": "list", "data": [_card(card) for card in self._models()]})

    async def get_model(self, request: Request) -> Response:
        self._caller(request)
        name = request.path_params["model"]
        for card in self._models():
            if card.name == name:
                return _json(_card(card))
        raise UnknownModel(f"model {name!r} is not served here")

    async def completions(self, request: Request) -> Response:
        caller = self._caller(request)
        call = parse_completion(await self._body(request))
        return await self._answer(request, caller, call, CompletionRenderer(), "cmpl-")

    async def chat(self, request: Request) -> Response:
        caller = self._caller(request)
        call = parse_chat(await self._body(request))
        return await self._answer(request, caller, call, ChatRenderer(), "chatcmpl-")

    def _caller(self, request: Request) -> Caller:
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        key = value.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
        host = request.client.host if request.client else ""
        return self._authenticator.authenticate(key or None, from_loopback=host in LOOPBACK)

    async def _body(self, request: Request) -> Any:
        parts, size = [], 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > self._max_body_bytes:
                    raise BodyTooLarge(f"the body is over {self._max_body_bytes} bytes")
                parts.append(part)
        except ClientDisconnect as gone:
            raise ClientGone from gone
        try:
            return orjson.loads(b"".join(parts))
        except orjson.JSONDecodeError as error:
            raise InvalidField("body", "is not valid JSON") from error

    async def _answer(
        self, request: Request, caller: Caller, call: Call, renderer: Renderer, prefix: str
    ) -> Response:
        answer_id = prefix + uuid.uuid4().hex
        headers = {REQUEST_HEADER: answer_id}
        if call.ignored:
            headers[IGNORED_HEADER] = ", ".join(call.ignored).encode("ascii", "replace").decode()[:1024]
        sources = [
            self._generate.run(each, caller, traceparent=request.headers.get("traceparent"))
            for each in call.requests
        ]
        answer = Answer(call, renderer, answer_id)
        if call.stream:
            chunks = answer.chunks(sources)
            first = await while_connected(request.receive, _first(chunks))
            return _EventStream(first, chunks, headers)
        body = await while_connected(request.receive, answer.whole(sources))
        return _json(body, headers=headers)


async def _first(chunks: AsyncIterator[bytes]) -> bytes:
    return await anext(chunks)


class _EventStream(Response):
    """Server-sent events, ended as soon as the client has gone."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        super().__init__(headers=headers | {"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except ClientGone:
            return

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async with aclosing(self._rest) as rest:
            async for part in rest:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _card(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": 0,
        "owned_by": "quire",
        "root": card.revision,
        "max_model_len": card.max_context_tokens,
    }


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


def _on_serve_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServeError)
    return _json(body_of(error), status_of(error), headers_of(error))


def _on_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


def _on_bug(request: Request, error: Exception) -> Response:
    correlation_id = uuid.uuid4().hex
    _log.error("call_failed", path=request.url.path, correlation_id=correlation_id, exc_info=error)
    return _json(body_of(ServeError(f"internal error, correlation id {correlation_id}")), 500)
