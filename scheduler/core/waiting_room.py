"""Every request that waits, found by id, by gateway and by its deadline.

Knows who waits; the policy it holds knows the order. Knows no worker.
"""

import heapq
from collections.abc import Mapping

from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Requeue, Terms, WaitingRequest
from scheduler.core.tenant_table import TenantTable
from services.domain.generation import Band, RequestClass
from services.domain.ids import GatewayId, RequestId, TenantId, WorkerId

QueueName = tuple[Band, RequestClass, str]


class WaitingRoom:
    """The queue and its indexes, which never disagree."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.tenants = TenantTable()
        self.num_tokens = 0
        self._requests: dict[RequestId, WaitingRequest] = {}
        self._queues: dict[QueueName, dict[RequestId, WaitingRequest]] = {}
        """In the order of arrival; none is empty."""
        self._by_gateway: dict[GatewayId, dict[RequestId, None]] = {}
        self._num_long: dict[str, int] = {}
        """Long requests by model; none is 0."""
        self._deadlines: list[tuple[float, int, WaitingRequest]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: RequestId) -> WaitingRequest | None:
        return self._requests.get(request_id)

    def has_long(self, model: str) -> bool:
        """Say whether a long request of a model waits."""
        return model in self._num_long

    def all(self) -> list[WaitingRequest]:
        """Return everything that waits. O(queue): for rare events."""
        return list(self._requests.values())

    def of_gateway(self, gateway: GatewayId) -> list[WaitingRequest]:
        return [self._requests[request_id] for request_id in self._by_gateway.get(gateway, ())]

    def num_of_gateway(self, gateway: GatewayId) -> int:
        return len(self._by_gateway.get(gateway, ()))

    @property
    def sizes(self) -> Mapping[QueueName, int]:
        """Requests waiting by band, class and model."""
        return {name: len(queue) for name, queue in self._queues.items()}

    def oldest(self) -> Mapping[QueueName, float]:
        """Return when the first of each queue came in. O(queues)."""
        return {name: next(iter(queue.values())).arrived for name, queue in self._queues.items()}

    def waits_s(self, now: float) -> Mapping[str, dict[Band, dict[TenantId, float]]]:
        """Return how long the oldest request of each tenant has waited, by model and band. O(tenants)."""
        waits: dict[str, dict[Band, dict[TenantId, float]]] = {}
        for row in self.tenants:
            for (model, band), since in row.waiting.items():
                of_band = waits.setdefault(model, {}).setdefault(band, {})
                of_band[row.tenant] = now - next(iter(since.values()))
        return waits

    def add(self, request: WaitingRequest) -> None:
        request_id = request.key.request_id
        assert request_id not in self._requests, "a request waits once"
        self._requests[request_id] = request
        self._by_gateway.setdefault(request.gateway, {})[request_id] = None
        self.num_tokens += request.acquire.num_prompt_tokens
        self._enter(request)
        if request.deadline is not None:
            self._order += 1
            heapq.heappush(self._deadlines, (request.deadline, self._order, request))

    def remove(self, request: WaitingRequest) -> None:
        """Forget a request that leaves unplaced."""
        self.policy.remove(request)
        self._forget(request)

    def placed(self, request: WaitingRequest, worker: WorkerId, cached_tokens: int) -> None:
        """Forget a request that was placed."""
        self.policy.placed(request, worker, cached_tokens)
        self._forget(request)

    def edited(self, gateway: GatewayId, terms: Terms) -> None:
        """Tenants were edited: all of theirs is weighed anew, and what waits of a gateway's may move."""
        for tenant, weight in terms.weights.items():
            self.policy.weigh(tenant, weight)
            for key in self.tenants.weigh(tenant, weight):
                request = self._requests[key.request_id]
                if request.acquire.weight != weight:
                    request.acquire = request.acquire._replace(weight=weight)
        for moved in terms.requeued:
            self._requeue(gateway, moved)

    def expired(self, now: float) -> list[WaitingRequest]:
        """Return those whose time is up; each is returned once and still waits."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if self._waits(request):
                due.append(request)
        return due

    def next_deadline(self) -> float | None:
        while self._deadlines and not self._waits(self._deadlines[0][2]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _requeue(self, gateway: GatewayId, moved: Requeue) -> None:
        """Move requests, as far as they still wait, to where they would stand had they begun to wait there.
        O(n log n) of that queue."""
        requests = [
            request
            for key in moved.keys
            if (request := self.get(key.request_id)) is not None
            and (request.key, request.gateway) == (key, gateway)
        ]
        for request in sorted(requests, key=lambda one: one.arrived):
            self.policy.remove(request)
            self._leave(request)
            acquire = request.acquire
            request.acquire = acquire._replace(band=moved.band, request_class=moved.request_class)
            self._enter(request)
        for name in {self._name(request) for request in requests}:
            in_order = sorted(self._queues[name].items(), key=lambda one: one[1].arrived)
            self._queues[name] = dict(in_order)
        self.tenants.sort({request.acquire.tenant for request in requests})

    def _waits(self, request: WaitingRequest) -> bool:
        return self._requests.get(request.key.request_id) is request

    def _forget(self, request: WaitingRequest) -> None:
        request_id = request.key.request_id
        del self._requests[request_id]
        mine = self._by_gateway[request.gateway]
        del mine[request_id]
        if not mine:
            del self._by_gateway[request.gateway]
        self._leave(request)
        self.num_tokens -= request.acquire.num_prompt_tokens
        # Deadlines of requests long placed must not pile up.
        if len(self._deadlines) > 1024 + 2 * len(self._requests):
            self._deadlines = [entry for entry in self._deadlines if self._waits(entry[2])]
            heapq.heapify(self._deadlines)

    def _enter(self, request: WaitingRequest) -> None:
        """Put a request into the queue of its band, class and model."""
        self._queues.setdefault(self._name(request), {})[request.key.request_id] = request
        self.tenants.came(request.acquire, request.arrived)
        self._count_long(request, 1)
        self.policy.add(request)

    def _leave(self, request: WaitingRequest) -> None:
        """Take a request, of which the policy knows no more, out of that queue."""
        name = self._name(request)
        queue = self._queues[name]
        del queue[request.key.request_id]
        if not queue:
            del self._queues[name]
        self.tenants.left(request.acquire)
        self._count_long(request, -1)

    def _count_long(self, request: WaitingRequest, change: int) -> None:
        if request.acquire.request_class is RequestClass.LONG:
            model = request.acquire.model
            self._num_long[model] = self._num_long.get(model, 0) + change
            if not self._num_long[model]:
                del self._num_long[model]

    @staticmethod
    def _name(request: WaitingRequest) -> QueueName:
        acquire = request.acquire
        return acquire.band, acquire.request_class, acquire.model
