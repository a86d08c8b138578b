"""Which attempt of a request is on which worker, from its placement to its end.

Knows keys and workers only; tells an old attempt from a new one.
"""

from services.domain.ids import RequestId, RequestKey, WorkerId


class LiveTable:
    """The placed requests that have not ended, as far as their workers said."""

    def __init__(self) -> None:
        self._requests: dict[RequestId, tuple[int, WorkerId]] = {}
        self._on: dict[WorkerId, dict[RequestId, None]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: RequestId) -> tuple[int, WorkerId] | None:
        """Return the attempt and its worker."""
        return self._requests.get(request_id)

    def num_on(self, worker: WorkerId) -> int:
        return len(self._on.get(worker, ()))

    def add(self, key: RequestKey, worker: WorkerId) -> None:
        """A key is on a worker; a higher attempt replaces a lower one, never the other way."""
        known = self._requests.get(key.request_id)
        if known is not None and known[0] > key.attempt:
            return
        if known is not None:
            del self._on[known[1]][key.request_id]
        self._requests[key.request_id] = key.attempt, worker
        self._on.setdefault(worker, {})[key.request_id] = None

    def remove(self, key: RequestKey) -> None:
        """A key ended or was given back; another attempt of the same request stays."""
        known = self._requests.get(key.request_id)
        if known is not None and known[0] == key.attempt:
            del self._requests[key.request_id]
            del self._on[known[1]][key.request_id]

    def worker_gone(self, worker: WorkerId) -> None:
        for request_id in self._on.pop(worker, {}):
            del self._requests[request_id]
