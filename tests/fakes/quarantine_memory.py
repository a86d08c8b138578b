"""Quarantined prompts in memory, by a clock that is given: passes the suite of the Redis store."""

from collections.abc import Callable, Collection, Mapping

from services.domain.errors import DependencyDown


class MemoryQuarantine:
    """See `QuarantineStore`. `is_down` makes it silent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: dict[bytes, float] = {}
        self.is_down = False

    async def load(self) -> Mapping[bytes, float]:
        now = self._time()
        return {digest: end - now for digest, end in self._ends.items() if end > now}

    async def keep(self, held: Mapping[bytes, float]) -> None:
        now = self._time()
        self._ends |= {digest: now + left_s for digest, left_s in held.items()}

    async def forget(self, digests: Collection[bytes]) -> None:
        self._time()
        for digest in digests:
            self._ends.pop(digest, None)

    def _time(self) -> float:
        if self.is_down:
            raise DependencyDown("the store is down")
        return self._clock()
