"""Settlements on their way to the quota store: numbered batches in their order, in memory and in a journal.

A batch keeps its number and its settlements however often it is sent, and none comes before the one before it
is done. So the store can tell by one number per gateway what it has, after any outage and any restart. Knows
what is sent next and what is kept where; sends nothing.
"""

from collections import deque
from itertools import islice

import structlog

from gateway.stores.journal import Journal, JournalFile
from gateway.stores.quota import MAX_BATCH, Batch, Settlement
from services.domain.ids import RequestId

MAX_PENDING = 65_536
"""Settlements kept in memory; what comes on top is in the journal only."""
MAX_LOADED = 32
"""Batches read of a file at once, so that no request waits long for it."""

_log = structlog.get_logger()


class Backlog:
    """See the module.

    Args:
        boot: Who numbers: no two lives of a gateway have the same.
        journal: None keeps everything in memory only.
    """

    def __init__(self, boot: str, journal: Journal | None = None) -> None:
        self._boot = boot
        self._journal = journal
        self._is_writable = journal is not None
        self._pending: dict[RequestId, Settlement] = {}
        """All in memory: those in `_queue`, then those in `_new`."""
        self._new: deque[Settlement] = deque()
        self._queue: deque[Batch] = deque()
        self._num_spilled = 0
        """Settlements that are in the own file and not in memory; they come after `_queue`."""
        self._formed = self._written = self._done = 0
        """Highest numbers: of all batches, of those in the own file, of those that are done."""
        self._left: list[JournalFile] = []
        """Files of gateways that live no more, of which the first is in work."""
        self._theirs: deque[Batch] = deque()
        self._their_done = 0
        self.look()

    @property
    def num_pending(self) -> int:
        """Own settlements that are not done."""
        return len(self._pending) + self._num_spilled

    def look(self) -> None:
        """Look for files of gateways that have died since, unless there are some in work."""
        if self._journal is not None and not self._left:
            self._left = self._journal.left_behind()

    def add(self, settlement: Settlement) -> bool:
        """Take a settlement; False where there is no room for it."""
        if len(self._pending) >= MAX_PENDING and not self._is_writable:
            return False
        self._pending[settlement.id] = settlement
        self._new.append(settlement)
        return True

    def find(self, request_id: RequestId) -> Settlement | None:
        """Return a settlement that is in memory."""
        return self._pending.get(request_id)

    def next(self) -> Batch | None:
        """Return the batch to send now, the same one until it is done: own ones first, then others'."""
        if not self._queue and self._num_spilled:
            self._load()
        if not self._queue:
            self._clear()
            if self._new:
                self._queue.append(self._form())
                self._take_formed()
        if self._queue:
            return self._queue[0]
        while self._left:
            if not self._theirs:
                self._theirs.extend(self._left[0].batches(self._their_done, MAX_LOADED))
            if self._theirs:
                return self._theirs[0]
            self._left.pop(0).remove()
            self._their_done = 0
        return None

    def done(self, batch: Batch) -> None:
        """The store has what `next` returned."""
        if batch.boot != self._boot:
            self._their_done = self._theirs.popleft().number
            return
        self._done = self._queue.popleft().number
        for settlement in batch.settlements:
            if self._pending.get(settlement.id) is settlement:
                del self._pending[settlement.id]

    def keep(self) -> None:
        """Write everything to the journal: the store takes nothing just now."""
        if not all(self._write(batch) for batch in self._queue if batch.number > self._written):
            return
        while self._new:
            batch = self._form()
            if not self._write(batch):
                return
            self._take_formed()
            if self._num_spilled or len(self._pending) > MAX_PENDING:
                self._num_spilled += len(batch.settlements)
                for one in batch.settlements:
                    self._pending.pop(one.id, None)
            else:
                self._queue.append(batch)

    def close(self) -> None:
        """Leave what is not done to the next start; the journal must not be used any more."""
        if self._journal is None:
            return
        self.keep()
        for file in self._left:
            file.close()
        if self.num_pending:
            self._journal.own.close()
        else:
            self._journal.own.remove()

    def _form(self) -> Batch:
        """Return the next batch of new ones, which stay until `_take_formed`."""
        return Batch(self._boot, self._formed + 1, tuple(islice(self._new, MAX_BATCH)))

    def _take_formed(self) -> None:
        self._formed += 1
        for _ in range(min(MAX_BATCH, len(self._new))):
            self._new.popleft()

    def _write(self, batch: Batch) -> bool:
        if self._journal is None:
            return False
        try:
            self._journal.own.append(batch)
        except OSError as error:
            if self._is_writable:
                _log.error("journal_not_written", file=str(self._journal.own.path), error=error.strerror)
            self._is_writable = False
            return False
        self._is_writable = True
        self._written = batch.number
        return True

    def _load(self) -> None:
        assert self._journal is not None
        self._queue.extend(self._journal.own.batches(self._done, MAX_LOADED))
        loaded = [one for batch in self._queue for one in batch.settlements]
        self._pending = {one.id: one for one in loaded} | self._pending
        # What cannot be read was told as it was found.
        self._num_spilled = max(0, self._num_spilled - len(loaded)) if loaded else 0

    def _clear(self) -> None:
        """The own file is of no use any more: all of it is done."""
        if self._written and self._journal is not None:
            self._journal.own.clear()
            self._written = 0
