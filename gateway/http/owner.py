"""Run one call on behalf of a client that may hang up: unary and streamed answers share this.

A disconnect is an event that ends the work, not a flag looked at on the next write.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")

LINGER_S = 30.0
"""Seconds in which a client that was found too slow may still fetch what is on its way."""


class ClientGone(Exception):
    """The client closed its connection, or does not read at all; nobody takes an answer."""


class Patience:
    """How long a client that does not keep up is waited for."""

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self._linger_s = linger_s
        self._is_slow = asyncio.Event()

    def on_slow(self) -> None:
        """Its request has ended for that; the call must end some day too."""
        self._is_slow.set()

    async def spent(self) -> None:
        """Wait until a slow client has been waited for long enough."""
        await self._is_slow.wait()
        await asyncio.sleep(self._linger_s)


async def while_connected(receive: Receive, work: Awaitable[T], patience: Patience) -> T:
    """Return what `work` gives, or cancel it as soon as the client has gone.

    The request's body must have been read: what `receive` gives next is the disconnect.

    Raises:
        ClientGone: The client left first or stopped reading; `work` has ended.
    """
    job = asyncio.ensure_future(work)
    watches = (asyncio.ensure_future(_disconnected(receive)), asyncio.ensure_future(patience.spent()))
    try:
        await asyncio.wait((job, *watches), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientGone
        return job.result()
    finally:
        for task in (job, *watches):
            task.cancel()
        await asyncio.wait((job, *watches))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
