"""Run one call on behalf of a client that may hang up: unary and streamed answers share this.

A disconnect is an event that ends the work, not a flag looked at on the next write.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Return what `work` gives, or cancel it as soon as the client has gone.

    The request's body must have been read: what `receive` gives next is the disconnect.

    Raises:
        ClientGone: The client left first; `work` has ended.
    """
    job = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((job, watch), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientGone
        return job.result()
    finally:
        watch.cancel()
        job.cancel()
        await asyncio.wait((job, watch))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
