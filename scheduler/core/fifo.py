"""First in, first out inside a band; bands are strict.

Knows no tenant's share: whoever waits longest in the highest band is next.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from scheduler.core.request import WaitingRequest
from services.domain.generation import Band
from services.domain.ids import RequestKey


class _BandQueue:
    """Requests of one model and band in the order of `arrived`. Every operation is O(1), except the first
    look after a request came in that had waited elsewhere (a reconnect): that one sorts."""

    def __init__(self) -> None:
        self._requests: OrderedDict[RequestKey, WaitingRequest] = OrderedDict()
        self._last_arrived = float("-inf")
        self._sorted = True
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: WaitingRequest) -> None:
        assert request.key not in self._requests, "a key waits once"
        self._sorted = self._sorted and request.arrived >= self._last_arrived
        self._last_arrived = max(self._last_arrived, request.arrived)
        self._requests[request.key] = request
        self.num_tokens += request.acquire.num_prompt_tokens

    def remove(self, request: WaitingRequest) -> None:
        del self._requests[request.key]
        self.num_tokens -= request.acquire.num_prompt_tokens

    def __iter__(self) -> Iterator[WaitingRequest]:
        if not self._sorted:
            in_order = sorted(self._requests.values(), key=lambda request: request.arrived)
            self._requests = OrderedDict((request.key, request) for request in in_order)
            self._sorted = True
        return iter(self._requests.values())


class FifoPolicy:
    """`QueuePolicy` without fairness between tenants."""

    def __init__(self) -> None:
        self._bands: dict[str, dict[Band, _BandQueue]] = {}

    def add(self, request: WaitingRequest) -> None:
        bands = self._bands.get(request.acquire.model)
        if bands is None:
            bands = self._bands[request.acquire.model] = {band: _BandQueue() for band in sorted(Band)}
        bands[request.acquire.band].add(request)

    def remove(self, request: WaitingRequest) -> None:
        model = request.acquire.model
        self._bands[model][request.acquire.band].remove(request)
        if not any(self._bands[model].values()):
            del self._bands[model]

    def placed(self, request: WaitingRequest, cached_tokens: int) -> None:
        self.remove(request)

    def candidates(self, model: str) -> Iterator[WaitingRequest]:
        for queue in self._bands.get(model, {}).values():
            yield from queue

    def models(self) -> Iterable[str]:
        return tuple(self._bands)

    def num_waiting(self, model: str, lowest: Band = Band.BATCH) -> int:
        return sum(len(queue) for band, queue in self._bands.get(model, {}).items() if band <= lowest)

    def num_tokens(self, model: str, lowest: Band = Band.BATCH) -> int:
        return sum(queue.num_tokens for band, queue in self._bands.get(model, {}).items() if band <= lowest)
