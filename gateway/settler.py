"""One task that settles what requests used and renews the leases of those that run, in batches.

Requests hand over and go; nobody waits for the store here. While it is down, settlements are kept and tried
again for as long as that lasts. Knows nothing of why a request ended.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from gateway.backlog import Backlog
from gateway.stores.quota import (
    RENEW_EVERY_S,
    QuotaStore,
    Running,
    ScopeKey,
    Settlement,
    Spent,
)
from services.domain.errors import DependencyDown
from services.domain.ids import RequestId, TenantId

RETRY_S = 0.25
WATCH_EVERY_S = 0.8
"""What runs under a hard budget is renewed so often: one gateway's tokens are told to the store within this
time and read by another within it again, so that a spent budget ends a stream within 2 s."""
LOOK_EVERY_S = 60.0
"""Seconds between two looks for what gateways left behind that died and are not started again."""

_log = structlog.get_logger()


class Settler:
    """Owns settlements until the store has them.

    Args:
        backlog: Where they wait, and which come next.
        running: Gives requests that were admitted and have not ended: all, or those that cannot wait: under a
            hard budget, or unknown to the store.
        on_spent: Told what their scopes have spent.
        on_ended: Told of each settlement when it comes, which may be long before the store hears of it.
        on_lost: Told of one that is given up, because too many wait and no journal takes them: its request is
            never charged, and what it had reserved comes back when its lease ends.
    """

    def __init__(
        self,
        store: QuotaStore,
        backlog: Backlog,
        running: Callable[[bool], Sequence[Running]],
        on_spent: Callable[[Mapping[ScopeKey, Spent]], None],
        *,
        on_ended: Callable[[Settlement], None] = lambda one: None,
        on_lost: Callable[[Settlement], None] = lambda one: None,
    ) -> None:
        self._store = store
        self._backlog = backlog
        self._running, self._on_spent = running, on_spent
        self._on_ended, self._on_lost = on_ended, on_lost
        self._renew_at = 0.0
        self._is_renewing = True
        """Whether the last renewal came through."""
        self._work = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def num_pending(self) -> int:
        return self._backlog.num_pending

    def settle(self, settlement: Settlement) -> None:
        """Take over a settlement; returns at once."""
        self._on_ended(settlement)
        if not self._backlog.add(settlement):
            self._on_lost(settlement)
            return
        self._idle.clear()
        self._work.set()

    def pending_ending(self, tenant: TenantId, request_id: RequestId) -> bytes | None:
        """Return the ending of a tenant's request that the store does not have yet."""
        settlement = self._backlog.find(request_id)
        return settlement.ending if settlement is not None and settlement.account.tenant == tenant else None

    async def drained(self) -> None:
        """Wait until everything handed over, and what dead gateways left behind, is in the store."""
        await self._idle.wait()

    async def run(self) -> None:
        """Settle and renew for ever; what is left at the end is left to whoever finds it."""
        watch_at = time.monotonic()
        self._renew_at, look_at = watch_at + RENEW_EVERY_S, watch_at + LOOK_EVERY_S
        try:
            while True:
                now = time.monotonic()
                if now >= min(watch_at, self._renew_at):
                    watch_at = now + WATCH_EVERY_S
                    await self._renew(now)
                if now >= look_at:
                    look_at = now + LOOK_EVERY_S
                    self._backlog.look()
                if await self._settle_next():
                    continue
                self._idle.set()
                self._work.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, min(watch_at, self._renew_at) - time.monotonic())):
                        await self._work.wait()
        finally:
            self._backlog.close()

    async def _settle_next(self) -> bool:
        """Send the batch whose turn it is; return whether there was any."""
        batch = self._backlog.next()
        if batch is None:
            return False
        try:
            await self._store.settle_batch(batch)
        except DependencyDown:
            self._backlog.keep()
            await asyncio.sleep(RETRY_S)
        else:
            self._backlog.done(batch)
        return True

    async def _renew(self, now: float) -> None:
        """Renew all leases when they are due, and until it works; else only what cannot wait."""
        is_due = now >= self._renew_at
        running = self._running(is_due)
        try:
            spent = await self._store.renew(running) if running else {}
        except DependencyDown:
            if self._is_renewing:
                _log.warning("leases_not_renewed", num_requests=len(running))
            self._is_renewing = False
            self._renew_at = now + WATCH_EVERY_S
            return
        if is_due or not self._is_renewing:
            self._renew_at = now + RENEW_EVERY_S
        self._is_renewing = True
        self._on_spent(spent)
