"""Write the index's copy behind: gather changes, write them in batches, catch up after an outage.

Knows which changes are not copied yet; the truth is the index. Nothing waits for it: where the store is down,
it remembers only which workers must be written anew, so it cannot grow.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from kvmanager.core.index_copy import IndexCopy
from kvmanager.core.prefix_index import PrefixIndex, WorkerKey
from services.domain.errors import DependencyDown
from services.domain.ids import BlockHash, WorkerId

FLUSH_S = 0.1
"""Seconds of changes gathered into one write."""
RENEW_S = 60.0
"""Seconds between two renewals of a worker's time to live."""
RETRY_S = 1.0
MAX_GATHERED = 50_000
"""Changed blocks of one worker beyond which it is written as a whole."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Pending:
    """What of one worker is not copied yet."""

    whole: bool = False
    added: set[BlockHash] = field(default_factory=set)
    removed: set[BlockHash] = field(default_factory=set)


class CopyWriter:
    """Owns what is not written yet. Told of changes after the index has made them."""

    def __init__(self, copy: IndexCopy, index: PrefixIndex) -> None:
        self._copy = copy
        self._index = index
        self._pending: dict[WorkerId, _Pending] = {}
        self._wake = asyncio.Event()
        self.is_behind_since: float | None = None
        """When the oldest change that is not copied was made, by the loop's clock; None when all are."""
        self.num_failures = 0

    def changed(
        self, worker: WorkerId, *, added: Iterable[BlockHash] = (), removed: Iterable[BlockHash] = ()
    ) -> None:
        """Note a difference; `removed` came first."""
        pending = self._note(worker)
        if pending.whole:
            return
        pending.removed.update(removed)
        pending.added.difference_update(pending.removed)
        pending.added.update(added)
        pending.removed.difference_update(pending.added)
        if len(pending.added) + len(pending.removed) > MAX_GATHERED:
            self.replaced(worker)

    def replaced(self, worker: WorkerId) -> None:
        """Note that all of a worker is to be written anew, or forgotten if the index knows it no more."""
        self._pending[worker] = _Pending(whole=True)
        self._note(worker)

    async def run(self) -> None:
        """Write for ever."""
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + RENEW_S
        while True:
            try:
                async with asyncio.timeout_at(renew_at):
                    await self._wake.wait()
            except TimeoutError:
                renew_at = loop.time() + RENEW_S
                for key in self._index.workers():
                    self._note(key.worker)
            await asyncio.sleep(FLUSH_S)
            if not await self.flush():
                await asyncio.sleep(RETRY_S)

    async def flush(self) -> bool:
        """Write what is pending; False when the store did not take it all (it stays pending)."""
        self._wake.clear()
        batch, self._pending = self._pending, {}
        try:
            while batch:
                worker = next(iter(batch))
                await self._write(worker, batch[worker])
                del batch[worker]
        except DependencyDown as error:
            self.num_failures += 1
            _log.warning("index_copy_behind", reason=error.reason, num_workers=len(batch))
            return False
        finally:
            # What was under way may be half written: only the whole is sure to mend it.
            for worker in batch:
                self.replaced(worker)
            if not self._pending:
                self.is_behind_since = None
        return True

    async def _write(self, worker: WorkerId, pending: _Pending) -> None:
        key = self._index.key_of(worker)
        if key is None:
            await self._copy.forget(worker)
        elif pending.whole or not await self._copy.change(key, pending.added, pending.removed):
            await self._copy.replace(key, self._snapshot(key))

    def _snapshot(self, key: WorkerKey) -> frozenset[BlockHash]:
        return frozenset(self._index.blocks_of(key.worker))

    def _note(self, worker: WorkerId) -> _Pending:
        if self.is_behind_since is None:
            self.is_behind_since = asyncio.get_running_loop().time()
        self._wake.set()
        return self._pending.setdefault(worker, _Pending())
