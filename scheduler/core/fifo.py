"""First in, first out inside a band; bands are strict.

Knows no tenant's share and no class: whoever waits longest in the highest band is next.
"""

from collections.abc import Collection, Iterable, Iterator

from scheduler.core.arrival_queue import ArrivalQueue
from scheduler.core.policy import NoAccounts
from scheduler.core.request import WaitingRequest
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId, WorkerId


class FifoPolicy(NoAccounts):
    """`QueuePolicy` without fairness between tenants."""

    def __init__(self) -> None:
        self._bands: dict[str, dict[Band, ArrivalQueue]] = {}

    def add(self, request: WaitingRequest) -> None:
        bands = self._bands.get(request.acquire.model)
        if bands is None:
            bands = self._bands[request.acquire.model] = {band: ArrivalQueue() for band in sorted(Band)}
        bands[request.acquire.band].add(request)

    def remove(self, request: WaitingRequest) -> None:
        model = request.acquire.model
        self._bands[model][request.acquire.band].remove(request)
        if not any(self._bands[model].values()):
            del self._bands[model]

    def placed(self, request: WaitingRequest, worker: WorkerId, cached_tokens: int) -> None:
        self.remove(request)

    def candidates(
        self, model: str, *, closed: Collection[RequestClass] = (), held: Collection[TenantId] | None = None
    ) -> Iterator[WaitingRequest]:
        for queue in self._bands.get(model, {}).values():
            for request in queue:
                if request.acquire.request_class not in closed and request.acquire.tenant not in (held or ()):
                    yield request

    def models(self) -> Iterable[str]:
        return tuple(self._bands)

    def num_waiting(self, model: str, lowest: Band = Band.BATCH) -> int:
        return sum(len(queue) for band, queue in self._bands.get(model, {}).items() if band <= lowest)

    def num_tokens(self, model: str, lowest: Band = Band.BATCH) -> int:
        return sum(queue.num_tokens for band, queue in self._bands.get(model, {}).items() if band <= lowest)

    def position(self, request: WaitingRequest) -> int:
        return self.num_waiting(request.acquire.model, request.acquire.band)
