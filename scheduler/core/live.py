"""Which attempt of a request is on which worker, from its placement to its end.

Knows keys and workers, the seats of each class, and which blocks a request computes; tells an old attempt
from a new one.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduler.core.in_flight import InFlight
from services.domain.generation import Band, RequestClass
from services.domain.ids import BlockHash, RequestId, RequestKey, TenantId, WorkerId


class Seated(NamedTuple):
    """Who has seats on a worker, or will have."""

    tenant: TenantId
    band: Band
    kind: RequestClass
    num_seats: int
    """Its sequences."""
    num_pages: int
    """Pages of its prompt: it holds so many at least."""


class LiveTable:
    """The placed requests that have not ended, as far as their workers said."""

    def __init__(self) -> None:
        self._requests: dict[RequestId, tuple[int, WorkerId]] = {}
        self._on: dict[WorkerId, dict[RequestId, Seated | None]] = {}
        """None of those that only their worker knows: placed in an earlier term."""
        self._seats: Counter[tuple[WorkerId, RequestClass]] = Counter()
        self._digests: dict[RequestId, bytes] = {}
        self.in_flight = InFlight()

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: RequestId) -> tuple[int, WorkerId] | None:
        """Return the attempt and its worker."""
        return self._requests.get(request_id)

    def num_on(self, worker: WorkerId) -> int:
        return len(self._on.get(worker, ()))

    def digest(self, key: RequestKey) -> bytes:
        """Return what names the prompt of a key that is live; empty where that is not known."""
        known = self._requests.get(key.request_id)
        is_known = known is not None and known[0] == key.attempt
        return self._digests.get(key.request_id, b"") if is_known else b""

    def digests_on(self, worker: WorkerId) -> dict[RequestId, bytes]:
        """Return what names the prompts on a worker, as far as known."""
        names = self._digests
        return {request: names[request] for request in self._on.get(worker, ()) if request in names}

    def seated(self, worker: WorkerId) -> Collection[Seated]:
        """Return who is on a worker, as far as it was placed in this term."""
        return [one for one in self._on.get(worker, {}).values() if one is not None]

    def num_seats(self, worker: WorkerId, kind: RequestClass) -> int:
        """Return the seats that a class has or will have on a worker."""
        return self._seats[worker, kind]

    def add(
        self,
        key: RequestKey,
        worker: WorkerId,
        blocks: Sequence[BlockHash] = (),
        seated: Seated | None = None,
        digest: bytes = b"",
    ) -> None:
        """A key is on a worker; a higher attempt replaces a lower one, never the other way.

        Args:
            blocks: What it will compute, where that is known.
            seated: Who it is. Of a key that is known already nothing changes; one that only its worker knows
                (placed in an earlier term) counts as one sequence of the short class.
            digest: What names its prompt, where that is known.
        """
        known = self._requests.get(key.request_id)
        if known is not None and (known[0] > key.attempt or known == (key.attempt, worker)):
            return
        if known is not None:
            self._leave(key.request_id, known[1])
        self._requests[key.request_id] = key.attempt, worker
        self._on.setdefault(worker, {})[key.request_id] = seated
        kind, num_seats = _seats(seated)
        self._seats[worker, kind] += num_seats
        if blocks:
            self.in_flight.begin(key.request_id, worker, blocks)
        if digest:
            self._digests[key.request_id] = digest

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
            self._leave(key.request_id, known[1])
            self._digests.pop(key.request_id, None)
            self.in_flight.forget(key.request_id)

    def worker_gone(self, worker: WorkerId) -> None:
        for request_id in list(self._on.get(worker, ())):
            del self._requests[request_id]
            self._leave(request_id, worker)
            self._digests.pop(request_id, None)
            self.in_flight.forget(request_id)
        self.in_flight.lost(worker)
        self._on.pop(worker, None)

    def _leave(self, request_id: RequestId, worker: WorkerId) -> None:
        kind, num_seats = _seats(self._on[worker].pop(request_id))
        self._seats[worker, kind] -= num_seats
        if not self._seats[worker, kind]:
            del self._seats[worker, kind]


def _seats(seated: Seated | None) -> tuple[RequestClass, int]:
    return (RequestClass.SHORT, 1) if seated is None else (seated.kind, seated.num_seats)
