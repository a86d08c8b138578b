"""Looks at what waits and at how full the pools are, and moves the ladder of degradation by it.

Knows whose requests wait and since when, and the policy's word on who asks within its share; decides nothing
itself and means nothing by a step.
"""

from collections.abc import Sequence

from scheduler.core.degrade import Ladder, Load, TenantStep
from scheduler.core.fleet import Fleet
from scheduler.core.outputs import ModelsChanged, Output, TenantStepsChanged
from scheduler.core.waiting_room import WaitingRoom
from services.domain.generation import Band
from services.domain.ids import TenantId

MOST_TOLD = 1000
"""Tenants in one message."""


class LoadWatch:
    """See the module."""

    def __init__(self, ladder: Ladder, room: WaitingRoom, fleet: Fleet) -> None:
        self._ladder = ladder
        self._room = room
        self._fleet = fleet

    def look(self, now: float) -> list[Output]:
        """Move the ladder; return what gateways have to know of it."""
        moved = self._ladder.look(self._loads(now), now)
        changed: list[Output] = [ModelsChanged(self._fleet.models())] if moved.bands else []
        return changed + told(moved.tenants)

    def _loads(self, now: float) -> dict[str, Load]:
        """Return what presses on each model that something waits for."""
        waits = self._room.waits_s(now)
        return {model: self._load(model, of_model) for model, of_model in waits.items()}

    def _load(self, model: str, waits_s: dict[Band, dict[TenantId, float]]) -> Load:
        room = self._room

        def is_within_share(tenant: TenantId, band: Band) -> bool:
            # One request that waits is no flood, however long its prompt.
            is_one = room.tenants.num_waiting(tenant, model, band) == 1
            return is_one or room.policy.asks_within_share(tenant, model, band)

        return Load(waits_s, self._fleet.held(model), is_within_share)


def told(steps: Sequence[TenantStep]) -> list[Output]:
    """Return what tells gateways of tenants' steps, a bounded number in each message."""
    starts = range(0, len(steps), MOST_TOLD)
    return [TenantStepsChanged(tuple(steps[start : start + MOST_TOLD])) for start in starts]
