"""All live requests of this gateway, bounded. Gauges and renewals are read from it, never counted beside."""

import asyncio
from collections.abc import Callable

from gateway.attempts import Phase
from gateway.live_request import LiveRequest
from services.domain.errors import ErrorDetail, QueueFull, ServeError
from services.domain.ids import RequestId, TenantId


class LiveTable:
    """Live requests by id."""

    def __init__(self, max_live: int) -> None:
        self._max_live = max_live
        self._live: dict[RequestId, LiveRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[LiveRequest]:
        return list(self._live.values())

    def add(self, live: LiveRequest) -> None:
        """Take a request in.

        Raises:
            QueueFull: Too many requests are live.
        """
        if len(self._live) >= self._max_live:
            raise QueueFull(
                f"{len(self._live)} requests are live at this gateway, at most {self._max_live} may be",
                ErrorDetail(retry_after_s=1.0, quota="gateway/live", metadata={"limit": str(self._max_live)}),
            )
        self._live[live.id] = live
        self._idle.clear()

    def remove(self, live: LiveRequest) -> None:
        self._live.pop(live.id, None)
        if not self._live:
            self._idle.set()

    def find(self, tenant: TenantId, request_id: RequestId) -> LiveRequest | None:
        """Return a tenant's own live request."""
        live = self._live.get(request_id)
        return live if live is not None and live.tenant.id == tenant else None

    def levels(self, now: float) -> dict[str, tuple[int, float]]:
        """Return for every state how many requests are in it and the age of its oldest, in seconds."""
        levels = {phase.value: (0, 0.0) for phase in Phase}
        for live in self._live.values():
            num, age_s = levels[live.attempts.phase.value]
            levels[live.attempts.phase.value] = (num + 1, max(age_s, now - live.arrived))
        return levels

    def fail_all(self, make_error: Callable[[], ServeError]) -> None:
        """End every live request with an error of its own."""
        for live in self.all():
            live.fail(make_error())

    async def emptied(self) -> None:
        """Wait until no request is live."""
        await self._idle.wait()
