"""One task that settles what requests used and renews the leases of those that run, in batches.

Requests hand over and go; nobody waits for the store here. While it is down, settlements are kept and tried
again. Knows nothing of why a request ended.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import structlog

from gateway.stores.quota import RENEW_EVERY_S, QuotaStore, Running, Settlement
from services.domain.errors import DependencyDown
from services.domain.ids import RequestId, TenantId

MAX_BATCH = 128
MAX_PENDING = 65_536
"""Settlements kept while the store is down; the oldest go first, their leases expire by themselves."""
RETRY_S = 0.25

_log = structlog.get_logger()


class Settler:
    """Owns settlements until the store has them.

    Args:
        running: Requests that were admitted and have not ended.
    """

    def __init__(self, store: QuotaStore, running: Callable[[], Sequence[Running]]) -> None:
        self._store = store
        self._running = running
        self._pending: dict[RequestId, Settlement] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.num_dropped = 0

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def settle(self, settlement: Settlement) -> None:
        """Take over a settlement; returns at once."""
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
            self.num_dropped += 1
        self._pending[settlement.id] = settlement
        self._idle.clear()
        self._work.set()

    def pending_ending(self, tenant: TenantId, request_id: RequestId) -> bytes | None:
        """Return the ending of a tenant's request that the store does not have yet."""
        settlement = self._pending.get(request_id)
        return settlement.ending if settlement is not None and settlement.account.tenant == tenant else None

    async def drained(self) -> None:
        """Wait until everything handed over is in the store."""
        await self._idle.wait()

    async def run(self) -> None:
        """Settle and renew for ever."""
        renew_at = time.monotonic() + RENEW_EVERY_S
        while True:
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + RENEW_EVERY_S
                await self._renew()
            if self._pending:
                await self._settle_batch()
                continue
            self._work.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, renew_at - time.monotonic())):
                    await self._work.wait()

    async def _settle_batch(self) -> None:
        batch = [self._pending[one] for one in list(self._pending)[:MAX_BATCH]]
        try:
            await self._store.settle(batch)
        except DependencyDown:
            await asyncio.sleep(RETRY_S)
            return
        for one in batch:
            if self._pending.get(one.id) is one:
                del self._pending[one.id]
        if not self._pending:
            self._idle.set()

    async def _renew(self) -> None:
        running = self._running()
        if not running:
            return
        try:
            await self._store.renew(running)
        except DependencyDown:
            _log.warning("leases_not_renewed", num_requests=len(running))
