"""Waiting requests in the order in which they began to wait.

Knows `arrived`, lengths and keys; knows no band and no tenant.
"""

from collections import OrderedDict
from collections.abc import Iterator

from scheduler.core.request import WaitingRequest
from services.domain.ids import RequestKey


class ArrivalQueue:
    """Requests in the order of `arrived`. Every operation is O(1), except the first look or removal of a head
    after a request came in that had waited elsewhere (a reconnect): that one sorts."""

    def __init__(self) -> None:
        self._requests: OrderedDict[RequestKey, WaitingRequest] = OrderedDict()
        self._last_arrived = float("-inf")
        self._sorted = True
        self.first: WaitingRequest | None = None
        """None where nobody waits. Kept, because a head is looked at far more often than it changes."""
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: WaitingRequest) -> None:
        assert request.key not in self._requests, "a key waits once"
        if self.first is None or request.arrived < self.first.arrived:
            self.first = request
        self._sorted = self._sorted and request.arrived >= self._last_arrived
        self._last_arrived = max(self._last_arrived, request.arrived)
        self._requests[request.key] = request
        self.num_tokens += request.acquire.num_prompt_tokens

    def remove(self, request: WaitingRequest) -> None:
        del self._requests[request.key]
        if request is self.first:
            self.first = next(iter(self), None)
        self.num_tokens -= request.acquire.num_prompt_tokens

    def __iter__(self) -> Iterator[WaitingRequest]:
        if not self._sorted:
            self._sort()
        return iter(self._requests.values())

    def _sort(self) -> None:
        in_order = sorted(self._requests.values(), key=lambda request: request.arrived)
        self._requests = OrderedDict((request.key, request) for request in in_order)
        self._sorted = True
