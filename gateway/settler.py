"""One task that settles what requests used and renews the leases of those that run, in batches.

Requests hand over and go; nobody waits for the store here. While it is down, settlements are kept and tried
again. Knows nothing of why a request ended.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from gateway.stores.quota import (
    REMEMBER_S,
    RENEW_EVERY_S,
    QuotaStore,
    Running,
    ScopeKey,
    Settlement,
    Spent,
)
from services.domain.errors import DependencyDown, NotRun
from services.domain.ids import RequestId, TenantId

MAX_BATCH = 128
MAX_PENDING = 65_536
"""Settlements kept while the store is down; the oldest go first, their leases expire by themselves."""
RETRY_S = 0.25
WATCH_EVERY_S = 0.8
"""What runs under a hard budget is renewed so often: one gateway's tokens are told to the store within this
time and read by another within it again, so that a spent budget ends a stream within 2 s."""
GIVE_UP_S = REMEMBER_S - 60
"""A settlement of which an answer was lost so long ago may be counted and forgotten: it is dropped, not
doubled. One that surely did not run (`NotRun`) is kept however long the outage is, within `MAX_PENDING`. The
minute is for the call under way and for the store's clock."""

_log = structlog.get_logger()


class Settler:
    """Owns settlements until the store has them.

    Args:
        running: Gives requests that were admitted and have not ended: all, or those under a hard budget.
        on_spent: Told what their scopes have spent.
        on_lost: Told why a settlement is given up: `full`, more wait than are kept, or `unknown`, the store
            may have it and may have forgotten that it does. Its request is never charged by this gateway;
            what it had reserved comes back when its lease ends.
    """

    def __init__(
        self,
        store: QuotaStore,
        running: Callable[[bool], Sequence[Running]],
        on_spent: Callable[[Mapping[ScopeKey, Spent]], None],
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._store = store
        self._on_lost = on_lost
        self._running, self._on_spent = running, on_spent
        self._renew_at = 0.0
        self._is_renewing = True
        """Whether the last renewal came through."""
        self._tried_at: dict[RequestId, float] = {}
        """When the settlements that met trouble met it first."""
        self._pending: dict[RequestId, Settlement] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def settle(self, settlement: Settlement) -> None:
        """Take over a settlement; returns at once."""
        if len(self._pending) >= MAX_PENDING:
            self._drop(next(iter(self._pending)), "full")
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
        watch_at = time.monotonic()
        self._renew_at = watch_at + RENEW_EVERY_S
        while True:
            now = time.monotonic()
            if now >= min(watch_at, self._renew_at):
                watch_at = now + WATCH_EVERY_S
                await self._renew(now)
            if self._pending:
                await self._settle_batch()
                continue
            self._idle.set()
            self._work.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(watch_at, self._renew_at) - time.monotonic())):
                    await self._work.wait()

    async def _settle_batch(self) -> None:
        now = time.monotonic()
        for one, tried_at in list(self._tried_at.items()):
            if now - tried_at > GIVE_UP_S:
                self._drop(one, "unknown")
        batch = [self._pending[one] for one in list(self._pending)[:MAX_BATCH]]
        try:
            await self._store.settle(batch)
        except DependencyDown as error:
            for settlement in batch:
                if not isinstance(error, NotRun):
                    self._tried_at.setdefault(settlement.id, now)
                # To the end, so that the store and the outage's policy hear of all in turn.
                if self._pending.pop(settlement.id, None) is not None:
                    self._pending[settlement.id] = settlement
            await asyncio.sleep(RETRY_S)
            return
        for settlement in batch:
            if self._pending.get(settlement.id) is settlement:
                del self._pending[settlement.id]
                self._tried_at.pop(settlement.id, None)

    def _drop(self, request_id: RequestId, reason: str) -> None:
        self._pending.pop(request_id, None)
        self._tried_at.pop(request_id, None)
        self._on_lost(reason)

    async def _renew(self, now: float) -> None:
        """Renew all leases when they are due, and until it works; else only what a hard budget watches."""
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
