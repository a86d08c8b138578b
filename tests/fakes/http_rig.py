"""The HTTP door of a `gateway_rig`, on a port of its own, served as in the real process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI
from starlette.applications import Starlette

from gateway.generate import new_request_id
from gateway.http.app import build_app
from gateway.http.server import HttpServer
from gateway.wiring import Parts
from tests.fakes.gateway_rig import Rig, gateway_rig

MAX_BODY_BYTES = 256 * 1024
KEY = "acme-key"
"""Of the rig's tenant `acme`."""


@dataclass
class HttpRig:
    """A gateway with both doors."""

    rig: Rig
    app: Starlette
    server: HttpServer
    port: int
    client: AsyncOpenAI
    """The official client, as tenant `acme`."""
    web: httpx.AsyncClient
    """Without a key: tenant `local`."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(self, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        """Post a body; model and prompt are filled in."""
        default: dict[str, Any] = {"model": "tiny"}
        if path.endswith("chat/completions"):
            default["messages"] = [{"role": "user", "content": "hello"}]
        else:
            default["prompt"] = "hello"
        return await self.web.post(path, json=default | body)


class Spy(dict[str, Any]):
    """A body that remembers what was looked for in it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def names_read(parse: Callable[[Any], Any], body: dict[str, Any]) -> set[str]:
    """Return the names of all fields that a parser looks for in a body."""
    spy = Spy(body)
    parse(spy)
    return spy.names


def openai_client(port: int, key: str = KEY) -> AsyncOpenAI:
    """Return the official client, without its own retries."""
    return AsyncOpenAI(api_key=key, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)


def app_of(parts: Parts) -> Starlette:
    """Return the HTTP door of a gateway."""
    return build_app(
        parts.generate,
        parts.auth,
        parts.queries,
        new_request_id=new_request_id,
        serialized=parts.metrics.serialized,
        max_body_bytes=MAX_BODY_BYTES,
    )


@asynccontextmanager
async def http_rig(**options: Any) -> AsyncIterator[HttpRig]:
    """Start a gateway with both doors between fake peers."""
    async with gateway_rig(**options) as rig:
        app = app_of(rig.parts)
        server = HttpServer(app, host="127.0.0.1", metrics=rig.metrics)
        port = server.bind(0)
        serving = asyncio.create_task(server.run())
        client = openai_client(port)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as web, client:
                yield HttpRig(rig, app, server, port, client, web)
        finally:
            await server.stop()
            await serving
