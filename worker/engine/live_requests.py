"""The one registry of live requests, by handle and by id; everything else holds references.

Knows which attempt of a request is the newest one seen; knows nothing of seats or pages.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from services.domain.ids import RequestId, RequestKey
from worker.engine.request import Request


@dataclass(frozen=True, slots=True)
class Fresh:
    """Never seen, or a higher attempt than one that has ended."""


@dataclass(frozen=True, slots=True)
class Attaches:
    """The same attempt is live."""

    to: Request


@dataclass(frozen=True, slots=True)
class Supersedes:
    """An older attempt is live; it must end first."""

    older: Request


@dataclass(frozen=True, slots=True)
class Stale:
    """A higher attempt has been seen, or this one has already ended here."""

    newest_attempt: int


class LiveRequests:
    """Live requests and, for a bounded number of ended ones, their last attempt."""

    REMEMBERED_ENDS = 10_000

    def __init__(self) -> None:
        self._by_handle: dict[int, Request] = {}
        self._by_id: dict[RequestId, Request] = {}
        self._ended: OrderedDict[RequestId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_handle)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_handle.values())

    def get(self, handle: int) -> Request | None:
        return self._by_handle.get(handle)

    def classify(self, key: RequestKey) -> Fresh | Attaches | Supersedes | Stale:
        """Say what a Submit with this key is."""
        live = self._by_id.get(key.request_id)
        if live is not None:
            if live.key.attempt == key.attempt:
                return Attaches(live)
            return Supersedes(live) if live.key.attempt < key.attempt else Stale(live.key.attempt)
        ended = self._ended.get(key.request_id)
        return Fresh() if ended is None or ended < key.attempt else Stale(ended)

    def add(self, request: Request) -> None:
        """Register a request whose handle and id are not live."""
        assert request.handle not in self._by_handle, "handles are unique while live"
        assert request.key.request_id not in self._by_id, "one attempt of a request is live"
        self._by_handle[request.handle] = request
        self._by_id[request.key.request_id] = request

    def rename(self, request: Request, handle: int) -> None:
        """Give a live request another handle."""
        del self._by_handle[request.handle]
        assert handle not in self._by_handle, "handles are unique while live"
        request.handle = handle
        self._by_handle[handle] = request

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, but for its attempt."""
        del self._by_handle[request.handle]
        del self._by_id[request.key.request_id]
        self._ended[request.key.request_id] = request.key.attempt
        self._ended.move_to_end(request.key.request_id)
        while len(self._ended) > self.REMEMBERED_ENDS:
            self._ended.popitem(last=False)
