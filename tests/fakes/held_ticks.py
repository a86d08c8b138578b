"""Ticks of a loop that follows a store, held until a test lets them go: what is counted is not time."""

import asyncio

EFFECTIVE_WITHIN_S = 1.0
"""Seconds within which an edit holds in every process."""
REST_S = 0.25
"""Of these for the store and the streams; the rest is for the tick."""


class HeldTicks:
    """Stands for `services.chassis.ticks.next_tick`."""

    def __init__(self) -> None:
        self.periods: list[float] = []
        """What was asked for, in seconds: the longest that an edit made now waits for the next tick."""
        self._go_on = asyncio.Semaphore(0)

    async def next_tick(self, period_s: float) -> None:
        self.periods.append(period_s)
        await self._go_on.acquire()

    def let_one_go(self) -> None:
        self._go_on.release()
