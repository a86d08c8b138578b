"""Keeps the quarantine in a store, so that a restarted scheduler refuses what the last one refused.

Read at the start, written behind in ticks: placing never waits for the store, and while that is silent the
quarantine in memory goes on alone. What was quarantined less than a tick before a crash may be lost.
Suspects, who were on one worker that died, are not kept. Knows no stream and decides nothing.
"""

import contextlib
import time
from collections.abc import Callable

import structlog

from scheduler.core.quarantine import Quarantine
from scheduler.stores.quarantine import QuarantineStore
from services.chassis.ticks import next_tick
from services.domain.errors import DependencyDown

EVERY_S = 1.0

_log = structlog.get_logger()


class QuarantineKeeper:
    """Makes the store and the quarantine of this term equal.

    Args:
        quarantine: Gives that of the present term; each term begins with an empty one.
        clock: The core's.
    """

    def __init__(
        self,
        store: QuarantineStore,
        quarantine: Callable[[], Quarantine],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._quarantine = quarantine
        self._clock = clock
        self._restored_in: Quarantine | None = None
        self._stored: dict[bytes, float] | None = None
        """What the store has, with the ends; None: not read yet."""

    async def follow(self) -> None:
        """Bring one up to the other.

        Raises:
            DependencyDown: The store is silent; the next call does what is left.
        """
        if self._stored is None:
            found = await self._store.load()
            self._stored = {digest: self._clock() + left_s for digest, left_s in found.items()}
        quarantine, now = self._quarantine(), self._clock()
        if quarantine is not self._restored_in:
            self._restored_in = quarantine
            if num := quarantine.restore(self._stored, now):
                _log.info("quarantine_restored", num_prompts=num)
        held = {one.digest: one.until for one in quarantine.entries(now)}
        released = [digest for digest, until in self._stored.items() if digest not in held and until > now]
        if released:
            await self._store.forget(released)
        new = {digest: until for digest, until in held.items() if self._stored.get(digest) != until}
        if new:
            await self._store.keep({digest: until - now for digest, until in new.items()})
        self._stored = held

    async def run(self) -> None:
        """Follow for ever."""
        while True:
            await next_tick(EVERY_S)
            with contextlib.suppress(DependencyDown):
                await self.follow()
