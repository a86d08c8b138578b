"""First in, first out inside a band; bands are strict.

Whoever waits longest in the highest band is next. Knows no tenant's share; keeps classes apart only so that
one of which nothing can be placed need not be looked through.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator

from scheduler.core.arrival_queue import ArrivalQueue
from scheduler.core.policy import NoAccounts
from scheduler.core.request import WaitingRequest
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId, WorkerId


class FifoPolicy(NoAccounts):
    """`QueuePolicy` without fairness between tenants."""

    def __init__(self) -> None:
        self._bands: dict[str, dict[Band, dict[RequestClass, ArrivalQueue]]] = {}

    def add(self, request: WaitingRequest) -> None:
        acquire = request.acquire
        bands = self._bands.get(acquire.model, {})
        if acquire.band not in bands:
            new = {acquire.band: {kind: ArrivalQueue() for kind in RequestClass}}
            bands = self._bands[acquire.model] = dict(sorted((bands | new).items()))
        bands[acquire.band][acquire.request_class].add(request)

    def remove(self, request: WaitingRequest) -> None:
        acquire = request.acquire
        self._bands[acquire.model][acquire.band][acquire.request_class].remove(request)
        if not self.num_waiting(acquire.model):
            del self._bands[acquire.model]

    def placed(self, request: WaitingRequest, worker: WorkerId, cached_tokens: int) -> None:
        self.remove(request)

    def candidates(
        self, model: str, *, closed: Collection[RequestClass] = (), held: Collection[TenantId] | None = None
    ) -> Iterator[WaitingRequest]:
        for classes in self._bands.get(model, {}).values():
            queues = [queue for kind, queue in classes.items() if kind not in closed]
            for request in heapq.merge(*queues, key=lambda request: request.arrived):
                if request.acquire.tenant not in (held or ()):
                    yield request

    def models(self) -> Iterable[str]:
        return tuple(self._bands)

    def num_waiting(self, model: str, lowest: Band | None = None) -> int:
        return sum(len(queue) for queue in self._queues(model, lowest))

    def num_tokens(self, model: str, lowest: Band | None = None) -> int:
        return sum(queue.num_tokens for queue in self._queues(model, lowest))

    def position(self, request: WaitingRequest) -> int:
        return self.num_waiting(request.acquire.model, request.acquire.band)

    def _queues(self, model: str, lowest: Band | None) -> Iterator[ArrivalQueue]:
        for band, classes in self._bands.get(model, {}).items():
            if lowest is None or band <= lowest:
                yield from classes.values()
