"""Keeps this process's tenants and keys as the store has them, and makes changes to them.

Asks twice a second, so that an edit made anywhere is effective here within a second; while the store does not
answer, the last state goes on, and a store that comes back empty gets it back. Knows when to ask and what to
do when somebody was quicker. What a change is and whether it may be is its maker's business.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
import structlog

from gateway.core.directory import Change, TenantDirectory
from gateway.stores.tenants import TenantLog
from services.chassis.ticks import next_tick
from services.domain.errors import DependencyDown, StaleChange
from services.domain.tenant_book import TenantBook

ASK_EVERY_S = 0.5
RETRY_S = 0.1
"""Seconds between two tries while the store does not answer: an edit made once it is back must not wait for
the pause of the breaker before it and for a tick on top."""
NOTE_EVERY_S = 10.0
"""Seconds between two notes of when keys were used last."""
MAX_TRIES = 8
"""Of one change, each from the newest state, while others change something too."""

PUT_BACK_BY = "gateway"
"""In the audit stream, who gave an empty store what it held: a caller's name has a slash."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Edit:
    """What is to be changed, worked out from the newest state."""

    changes: Sequence[Change]
    book: TenantBook | None = None
    """All tenants afterwards, where they change."""


class TenantFeed:
    """The one writer of a `TenantDirectory`.

    Args:
        take_used: Returns when keys were used since it was called last, by key id.
        on_change: Called once the store was read for the first time, and after each change.
    """

    def __init__(
        self,
        directory: TenantDirectory,
        log: TenantLog,
        take_used: Callable[[], dict[str, float]],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        directory.is_complete = False
        self._on_change = on_change
        self._log = log
        self._take_used = take_used
        self._told: list[str] = []

    async def refresh(self) -> None:
        """Be as the store is now; where it lost everything, make it as this is.

        Raises:
            DependencyDown: It does not answer, or takes nothing.
        """
        directory, began = self.directory, self._seen()
        while True:
            seen = self._seen()
            entries = await self._log.since(*seen)
            stored = await self._log.load() if entries is None else None
            if seen != self._seen():
                continue  # Another call was quicker; what came here may be in already, or older.
            if entries is not None:
                directory.apply(entries)
            elif stored is not None and (stored.store or not directory.held()):
                if stored.store == directory.store and stored.version <= directory.version:
                    _log.warning("tenant_edits_lost", version=directory.version, now=stored.version)
                directory.replace(stored)
            else:
                await self._put_back()
                continue
            if not directory.revocations_lost() or not await self._revoke_again():
                break
        is_change = not directory.is_complete or began != self._seen()
        directory.is_complete = True
        if directory.problems and directory.problems != self._told:
            _log.error("tenants_unusable", problems=directory.problems[:20])
        self._told = directory.problems
        if began != self._seen():
            _log.info("tenants_changed", version=directory.version, num_tenants=len(directory.book))
        if is_change:
            self._on_change()

    async def change(self, work_out: Callable[[], Edit], *, who: str, dry_run: bool = False) -> Edit:
        """Make a change from the newest state, again if somebody else was quicker.

        Raises:
            StaleChange: Others were quicker every time.
            DependencyDown: The store does not answer.
            ServeError: What `work_out` raises.
        """
        for _ in range(MAX_TRIES):
            await self.refresh()
            edit = work_out()
            if dry_run or not edit.changes:
                return edit
            try:
                await self._log.commit(
                    edit.changes,
                    who=who,
                    store=self.directory.store,
                    version=self.directory.version,
                    mark=self.directory.mark,
                    kv_caps=None if edit.book is None else self._caps(edit.book),
                )
            except StaleChange:
                continue
            for change in edit.changes:
                # Before it is read again: a store that fails over just now may never show it.
                self.directory.saw(change)
            await self.refresh()
            return edit
        raise StaleChange(f"{MAX_TRIES} times somebody else changed tenants or keys meanwhile")

    async def run(self) -> None:
        """Follow the store for ever."""
        note_at = time.monotonic() + NOTE_EVERY_S
        is_up = True
        while True:
            try:
                await self.refresh()
                if time.monotonic() >= note_at:
                    note_at = time.monotonic() + NOTE_EVERY_S
                    await self._log.note_use(self._take_used())
                is_up = True
            except DependencyDown:
                if is_up:
                    _log.warning("tenants_not_followed", version=self.directory.version)
                is_up = False
            await (next_tick(ASK_EVERY_S) if is_up else asyncio.sleep(RETRY_S))

    async def _put_back(self) -> None:
        """Fill the empty store with what is held here, unless another gateway is quicker."""
        held, caps = self.directory.held(), self._caps(self.directory.book)
        with contextlib.suppress(StaleChange):
            await self._log.commit(held, who=PUT_BACK_BY, store="", version=0, mark="", kv_caps=caps)
            _log.warning("tenants_put_back", version=self.directory.version, num_changes=len(held))

    async def _revoke_again(self) -> bool:
        """End the keys that the store has opened again, unless another gateway is quicker.

        Returns:
            False: It takes nothing just now. Here they stay closed all the same.
        """
        changes, directory = self.directory.revocations_lost(), self.directory
        try:
            await self._log.commit(
                changes,
                who=PUT_BACK_BY,
                store=directory.store,
                version=directory.version,
                mark=directory.mark,
            )
        except StaleChange:
            return True
        except DependencyDown:
            return False
        _log.warning("revocations_put_back", keys=[one.id for one in changes][:20], num=len(changes))
        return True

    def _seen(self) -> tuple[str, int, str]:
        return self.directory.store, self.directory.version, self.directory.mark

    def _caps(self, book: TenantBook) -> str:
        """Return what the kvmanager must know besides the file, which it reads itself."""
        declared = self.directory.declared.kv_caps()
        caps = {name: pages for name, pages in book.kv_caps().items() if declared.get(name) != pages}
        return orjson.dumps(caps).decode()
