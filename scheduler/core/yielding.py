"""Who on a full worker would yield to a request: the worker's own rule, as seen from here.

A worker grants its free seats and no more, so without this nobody ever asked those who sit there to yield. A
request may be placed beyond the grants, one at a time on a worker, where by the last Ranks it finds enough
that have to yield to it:

1. What a lower band holds beyond its floor's part of the seats. Worked number: floor 0.1 of 32 seats keeps 3.
2. In its own band what tenants over their share hold, if all that its own tenant waits for would leave that
   one within its share: who has a backlog of its own waits for its turn, or two floods would go on taking
   each other's seats.

The worker chooses the victims (`worker.engine.preemption`). If all it could take were preempted often enough
already, the request waits in its line for the next seat, as it would have here.
"""

from collections.abc import Iterable

from scheduler.core.credits import WorkerCredits
from scheduler.core.live import Seated
from scheduler.core.placement import Choice
from scheduler.core.policy import QueuePolicy
from scheduler.core.request import Acquire
from services.domain.generation import Band

_Room = tuple[int, int]
"""Seats and pages."""
_NONE: _Room = (0, 0)


class Yielders:
    """What could be taken from those on one worker."""

    def __init__(self, worker: WorkerCredits, seated: Iterable[Seated], policy: QueuePolicy) -> None:
        self._worker = worker
        self._policy = policy
        self._of_band: dict[Band, _Room] = {}
        """Beyond its floor."""
        self._over_share: dict[Band, _Room] = {}
        kept: dict[Band, int] = {}
        for one in seated:
            if worker.over_share.get(one.tenant, 0.0) > 0.0:
                self._over_share[one.band] = _plus(self._over_share.get(one.band, _NONE), one)
            left = kept.get(one.band)
            if left is None:
                left = int(policy.floor(one.band) * worker.hello.capacity.max_sequences)
            kept[one.band] = left - one.num_seats
            if left <= 0:
                self._of_band[one.band] = _plus(self._of_band.get(one.band, _NONE), one)

    def concern(self, model: str) -> bool:
        """Say whether anybody might yield to somebody that waits: a quick look, for most reports."""
        lowest = max(self._of_band, default=Band(1))
        return bool(self._over_share) or (
            lowest > 1 and self._policy.num_waiting(model, Band(lowest - 1)) > 0
        )

    def make_room(self, choice: Choice, acquire: Acquire) -> bool:
        """Say whether so many yield to the request that it finds seats and pages."""
        rooms = [room for band, room in self._of_band.items() if band > acquire.band]
        own = self._over_share.get(acquire.band)
        is_within = self._worker.over_share.get(acquire.tenant, 0.0) <= 0.0
        if (
            own is not None
            and is_within
            and self._policy.asks_within_share(acquire.tenant, acquire.model, acquire.band)
        ):
            rooms.append(own)
        num_seats, num_pages = sum(room[0] for room in rooms), sum(room[1] for room in rooms)
        worker = self._worker
        if num_seats == 0 or acquire.num_choices > worker.num_free_seats + num_seats:
            return False
        return choice.num_pages <= worker.startable_pages + num_pages


def _plus(room: _Room, one: Seated) -> _Room:
    return room[0] + one.num_seats, room[1] + one.num_pages
