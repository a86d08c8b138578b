"""Which workers a class may use: short and long requests have seats and, where told so, workers of their own.

A class's limit is a part of a worker's seats. That of the long class always holds, because a short request
must find a seat at once; that of the short class only while long ones wait whose tenants have not had more
than their share. So a flood of either leaves the other something. With one seat a limit is no more than that
seat, and only the order of the queue says whose it is. Knows workers and live counts; knows no tenant and no
order.
"""

from scheduler.core.credits import WorkerCredits
from scheduler.core.live import LiveTable
from scheduler.core.placement import can_ever_serve
from scheduler.core.request import WaitingRequest
from scheduler.core.rules import Rules
from services.domain.generation import RequestClass

SHORT, LONG = RequestClass.SHORT, RequestClass.LONG


class ClassLimits:
    """Concurrency of the classes, and their pools of workers."""

    def __init__(self, rules: Rules, live: LiveTable) -> None:
        self._live = live
        self._shares = {SHORT: rules.max_short_share, LONG: rules.max_long_share}
        self._long_workers = rules.long_workers

    def with_room(
        self, workers: list[WorkerCredits], *, long_waits: bool, owed: RequestClass | None = None
    ) -> dict[RequestClass, list[WorkerCredits]]:
        """Return the workers on which a class is below its limit, whether or not they have credit.

        Worked number: 32 seats, share 0.9: 28 long ones, and 4 seats stay for short ones.

        Args:
            long_waits: Whether a long request waits; otherwise short ones may take every seat.
            owed: The class that has had less than its tenants' share; short ones then may take every seat.
        """
        own = self._own(workers)
        if own is not None:
            return own
        if not long_waits:
            return {SHORT: workers, LONG: workers}
        long = [w for w in workers if self._is_below_limit(w, LONG)]
        if owed is SHORT:
            return {SHORT: workers, LONG: long}
        return {SHORT: [w for w in workers if self._is_below_limit(w, SHORT)], LONG: long}

    def for_request(
        self, request: WaitingRequest, with_room: list[WorkerCredits], workers: list[WorkerCredits]
    ) -> list[WorkerCredits]:
        """Return where a request may be placed: where its class has room, or, if its class has workers of its
        own and they are too small for it (or have failed it), anywhere."""
        if self._own(workers) is None or any(can_ever_serve(request, worker) for worker in with_room):
            return with_room
        return workers

    def _own(self, workers: list[WorkerCredits]) -> dict[RequestClass, list[WorkerCredits]] | None:
        """Return each class's workers, or None where they share them: also while either would have none."""
        if not self._long_workers:
            return None
        long = [worker for worker in workers if worker.hello.worker in self._long_workers]
        if not 0 < len(long) < len(workers):
            return None
        return {SHORT: [worker for worker in workers if worker not in long], LONG: long}

    def _is_below_limit(self, worker: WorkerCredits, kind: RequestClass) -> bool:
        limit = max(1, int(self._shares[kind] * worker.hello.capacity.max_sequences))
        return self._live.num_seats(worker.hello.worker, kind) < limit
