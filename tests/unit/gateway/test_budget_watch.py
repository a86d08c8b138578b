"""What one gateway's streams spend of a hard budget another one knows within 2 s, whatever their phases.

Time is the loop's own, which jumps to the next timer: the seconds are those of the settler's intervals,
however slow the machine is.
"""

import asyncio
import selectors
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.backlog import Backlog
from gateway.settler import Settler
from gateway.stores.quota import Running, ScopeKey, Spent
from services.domain.limits import Budget, Limits
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_running, an_account

END_WITHIN_S = 2.0
CALL_S = 0.1
"""Of a call to a slow store."""
BUDGET = 1000
STEPS = [n / 10 for n in range(10)]
PHASES = [step + 0.04 for step in STEPS]
"""In one of them, the other's call comes to the store just before the first one's."""
SPENT_AT = [step + 3.001 for step in STEPS]
"""In one of them, a renewal of the first one's has just missed it."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """Waits for nothing but timers, and for those no real time."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                ready = super().select(0)
                loop.now += 0.0 if ready else timeout or 0.0
                return ready

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class SlowStore(MemoryQuota):
    async def renew(self, running: Sequence[Running]) -> Mapping[ScopeKey, Spent]:
        await asyncio.sleep(CALL_S / 2)
        spent = await super().renew(running)
        await asyncio.sleep(CALL_S / 2)
        return spent


async def seconds_until_told(loop: JumpingLoop, phase: float, spent_at: float) -> float:
    """Return how long after one gateway's stream spent the budget the other gateway heard of it.

    Args:
        phase: The other gateway starts so much later.
        spent_at: After the first one's start.
    """
    account = an_account(Limits(daily=Budget(tokens=BUDGET)))
    store, told = SlowStore(loop.time), asyncio.Event()

    def spends(every: bool) -> list[Running]:
        return [a_running(account, "theirs", BUDGET if loop.time() >= spent_at else 1)]

    def tell(spent: Mapping[ScopeKey, Spent]) -> None:
        if any(one.day >= BUDGET for one in spent.values()):
            told.set()

    first = Settler(store, Backlog("first"), spends, lambda spent: None)
    other = Settler(store, Backlog("other"), lambda every: [a_running(account, "own", 1)], tell)
    tasks = [asyncio.create_task(first.run())]
    await asyncio.sleep(phase)
    tasks.append(asyncio.create_task(other.run()))
    async with asyncio.timeout(60):
        await told.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return loop.time() - spent_at


@pytest.mark.parametrize("phase", PHASES)
def test_what_another_gateway_spent_is_known_in_time(monkeypatch: pytest.MonkeyPatch, phase: float) -> None:
    for spent_at in SPENT_AT:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, JumpingLoop)
            monkeypatch.setattr("gateway.settler.time", SimpleNamespace(monotonic=loop.time))
            seconds = runner.run(seconds_until_told(loop, phase, spent_at))
        assert 0 < seconds <= END_WITHIN_S, (phase, spent_at)
