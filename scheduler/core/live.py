"""Which attempt of a request is on which worker, from its placement to its end.

Knows keys and workers, and which blocks a request computes; tells an old attempt from a new one.
"""

from collections.abc import Sequence

from scheduler.core.in_flight import InFlight
from services.domain.ids import BlockHash, RequestId, RequestKey, WorkerId


class LiveTable:
    """The placed requests that have not ended, as far as their workers said."""

    def __init__(self) -> None:
        self._requests: dict[RequestId, tuple[int, WorkerId]] = {}
        self._on: dict[WorkerId, dict[RequestId, None]] = {}
        self.in_flight = InFlight()

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: RequestId) -> tuple[int, WorkerId] | None:
        """Return the attempt and its worker."""
        return self._requests.get(request_id)

    def num_on(self, worker: WorkerId) -> int:
        return len(self._on.get(worker, ()))

    def add(self, key: RequestKey, worker: WorkerId, blocks: Sequence[BlockHash] = ()) -> None:
        """A key is on a worker; a higher attempt replaces a lower one, never the other way.

        Args:
            blocks: What it will compute, where that is known.
        """
        known = self._requests.get(key.request_id)
        if known is not None and known[0] > key.attempt:
            return
        if known is not None:
            del self._on[known[1]][key.request_id]
        self._requests[key.request_id] = key.attempt, worker
        self._on.setdefault(worker, {})[key.request_id] = None
        if blocks:
            self.in_flight.begin(key.request_id, blocks)

    def ended(self, key: RequestKey, now: float) -> None:
        """A key ended; another attempt of the same request stays."""
        known = self._requests.get(key.request_id)
        if known is not None and known[0] == key.attempt:
            self.in_flight.end(key.request_id, now)
            self.remove(key)

    def remove(self, key: RequestKey) -> None:
        """A key was given back, or is lost; another attempt of the same request stays."""
        known = self._requests.get(key.request_id)
        if known is not None and known[0] == key.attempt:
            del self._requests[key.request_id]
            del self._on[known[1]][key.request_id]
            self.in_flight.forget(key.request_id)

    def worker_gone(self, worker: WorkerId) -> None:
        for request_id in self._on.pop(worker, {}):
            del self._requests[request_id]
            self.in_flight.forget(request_id)
