"""The OpenAI-compatible door: /v1/models, /v1/completions, /v1/chat/completions; and /v1/usage.

Knows HTTP only: what a body means and how an answer looks. Who calls was found out by `edge` before any
route is looked at; the work is the same use case that the gRPC door calls.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.core.auth import Authenticator
from gateway.core.keys import KeyScope
from gateway.core.request import Caller, GenerationRequest
from gateway.http.answers import Answer, Events
from gateway.http.edge import ABOUT, CALLER, TOLD, Edge
from gateway.http.errors import BodyTooLarge, BodyTooSlow, response_of, response_of_route
from gateway.http.json_body import read_json
from gateway.http.owner import ClientGone, Patience, while_connected
from gateway.http.parse import Call, parse_chat, parse_completion, with_key
from gateway.http.render import ChatRenderer, CompletionRenderer, Renderer
from gateway.http.server import ABORT
from gateway.http.usage import usage_body
from gateway.limit_lookup import LimitLookup, Subject
from gateway.usage import UsageReports
from services.domain.document_values import shown
from services.domain.errors import ServeError, UnknownModel
from services.domain.ids import RequestId
from services.domain.usage import splits_of
from services.rpc.gateway_values import ModelState

IGNORED_HEADER = "x-quire-ignored-fields"
REQUEST_HEADER = "x-request-id"
USAGE_PATH = "/v1/usage"
MAX_HEADER_CHARS = 1024
BODY_LIMIT_S = 60.0
"""Seconds in which a body must have come."""
MAX_SIZE_DIGITS = 20
"""Digits that are read of a declared size; HTTP/1.1 parsers know no larger one."""
PARSE_HERE_BYTES = 64 * 1024
"""A larger body is parsed in a thread, so that it holds up nobody else."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class Queries(Protocol):
    """What the door may ask of the gateway besides generations."""

    @property
    def usage(self) -> UsageReports: ...
    @property
    def limits(self) -> LimitLookup: ...
    def served_models(self, caller: Caller) -> list[ModelState]: ...


class UseCase(Protocol):
    """What the door needs of the gateway."""

    def run(
        self,
        request: GenerationRequest,
        caller: Caller,
        *,
        request_id: RequestId | None = None,
        arrived: float | None = None,
        traceparent: str = "",
        on_slow: Callable[[], None] = ...,
        on_headers: Callable[[Mapping[str, str]], None] = ...,
    ) -> Events: ...


def build_app(
    generate: UseCase,
    authenticator: Authenticator,
    queries: Queries,
    *,
    new_request_id: Callable[[], RequestId],
    serialized: Callable[[float], None],
    max_body_bytes: int,
) -> Starlette:
    """Return the ASGI application.

    Args:
        generate: The use case.
        authenticator: Says who calls.
        queries: Says what a caller can call now, and what it used.
        serialized: Told the seconds that each answer took to build.
        max_body_bytes: A larger body is refused with 413 before it is parsed.
    """
    door = _Door(generate, queries, new_request_id, serialized, max_body_bytes)
    app = Starlette(
        routes=[
            Route("/v1/models", door.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", door.get_model, methods=["GET"]),
            Route(USAGE_PATH, door.usage, methods=["GET"]),
            Route("/v1/completions", door.completions, methods=["POST"]),
            Route("/v1/chat/completions", door.chat, methods=["POST"]),
        ],
        middleware=[
            Middleware(
                Edge,
                authenticator=authenticator,
                scopes={USAGE_PATH: KeyScope.USAGE},
                limit_headers_of=queries.limits.headers_of,
            )
        ],
        exception_handlers={HTTPException: _on_route_error},
    )
    app.router.redirect_slashes = False
    return app


class _Door:
    def __init__(
        self,
        generate: UseCase,
        queries: Queries,
        new_request_id: Callable[[], RequestId],
        serialized: Callable[[float], None],
        max_body_bytes: int,
    ) -> None:
        self._generate = generate
        self._queries = queries
        self._new_request_id = new_request_id
        self._serialized = serialized
        self._max_body_bytes = max_body_bytes

    async def list_models(self, request: Request) -> Response:
        cards = [_card(model) for model in self._queries.served_models(request.scope[CALLER])]
        return _json(orjson.dumps({"object": "list", "data": cards}))

    async def get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        request.scope[ABOUT] = Subject(name)
        for model in self._queries.served_models(request.scope[CALLER]):
            if model.name == name:
                return _json(orjson.dumps(_card(model)))
        raise UnknownModel(f"the model {shown(name)} is not served here; see /v1/models")

    async def usage(self, request: Request) -> Response:
        by = splits_of(name for name in request.query_params.get("by", "").split(",") if name)
        period = request.query_params.get("period", "")
        tenant = request.scope[CALLER].tenant
        report = await self._queries.usage.of_one(tenant, period=period, by=by)
        return _json(orjson.dumps(usage_body(tenant, report)))

    async def completions(self, request: Request) -> Response:
        call = await self._call(request, parse_completion)
        return await self._answer(request, call, CompletionRenderer(), "cmpl-")

    async def chat(self, request: Request) -> Response:
        call = await self._call(request, parse_chat)
        return await self._answer(request, call, ChatRenderer(), "chatcmpl-")

    async def _call(self, request: Request, parse: Callable[[Any], Call]) -> Call:
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                body = await self._body(request)
        except TimeoutError as error:
            raise BodyTooSlow(f"the body did not come within {BODY_LIMIT_S:.0f} seconds") from error
        if len(body) <= PARSE_HERE_BYTES:
            call = parse(read_json(body))
        else:
            call = await asyncio.to_thread(lambda: parse(read_json(body)))
        return with_key(call, request.headers.get("idempotency-key", ""))

    async def _body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        self._check_size(int(declared[:MAX_SIZE_DIGITS]) if declared.isdecimal() else 0)
        parts, size = [], 0
        try:
            async for part in request.stream():
                size += len(part)
                self._check_size(size, " or more")
                parts.append(part)
        except ClientDisconnect as gone:
            raise ClientGone from gone
        return b"".join(parts)

    def _check_size(self, num_bytes: int, more: str = "") -> None:
        if num_bytes > self._max_body_bytes:
            raise BodyTooLarge("body", f"must be at most {self._max_body_bytes} bytes, got {num_bytes}{more}")

    async def _answer(self, request: Request, call: Call, renderer: Renderer, prefix: str) -> Response:
        ids = [self._new_request_id() for _ in call.requests]
        headers = {REQUEST_HEADER: ", ".join(ids)}
        request.scope[ABOUT] = Subject(call.requests[0].model)
        if call.ignored:
            headers[IGNORED_HEADER] = header_of_names(call.ignored)
        patience = Patience()

        def on_headers(told: Mapping[str, str]) -> None:
            headers.update(told)
            request.scope[TOLD] = True

        sources = [
            self._generate.run(
                each,
                request.scope[CALLER],
                request_id=request_id,
                arrived=time.monotonic(),
                traceparent=request.headers.get("traceparent", ""),
                on_slow=patience.on_slow,
                on_headers=on_headers,
            )
            for each, request_id in zip(call.requests, ids, strict=True)
        ]
        answer = Answer(call, renderer, prefix + ids[0], self._serialized)
        try:
            if call.stream:
                chunks = answer.chunks(sources)
                first = await while_connected(request.receive, _first(chunks), patience)
                return _EventStream(first, chunks, headers, patience)
            return _json(await while_connected(request.receive, answer.whole(sources), patience), headers)
        except ServeError as error:
            return response_of(error, headers)


def header_of_names(names: Sequence[str]) -> str:
    """Join names of fields for a header; they are a caller's words, so only plain characters get through."""
    shown: list[str] = []
    for name in names:
        shown.append(_UNSAFE.sub("?", name[:64]))
        if sum(map(len, shown)) + 2 * len(shown) > MAX_HEADER_CHARS:
            return ", ".join([*shown[:-1], "..."])
    return ", ".join(shown)


async def _first(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(chunks)


class _EventStream(Response):
    """Server-sent events, ended as soon as the client has gone."""

    media_type = "text/event-stream"

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], headers: dict[str, str], patience: Patience
    ) -> None:
        super().__init__(headers=headers | {"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send), self._patience)
        except ClientGone:
            # Somebody who does not read would keep the connection for ever.
            scope.get(ABORT, _nothing)()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._rest) as rest:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for part in rest:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _nothing() -> None:
    pass


def _card(model: ModelState) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "quire",
        "root": model.revision,
        "max_model_len": model.capacity.max_context_tokens,
    }


def _json(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, 200, headers, "application/json")


def _on_route_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return response_of_route(error)
