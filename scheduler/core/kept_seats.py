"""The last free seats of a worker, which are for tenants within their share.

A tenant over its share (`band_use`: it takes more than 1.25 times its weight's part while others ask for
less than theirs) is placed only while more than these are free: so one within it finds a seat at once, not
when the next one ends or somebody has yielded. What the first is kept from, no lower band gets.
Worked number: of 32 seats a part of 0.875 keeps 4, of 4 none.

Nobody starves. A seat that becomes free beyond the kept ones is anybody's in the order of the queue, so who
is held back is passed only by tenants that are served meanwhile, and what they get drains its excess: at most
`fair_queue.MOST_OVER` tokens of service by weight beyond the quantum, at `LEEWAY` / W a token (W: the band's
weights together). So it is held back for at most MOST_OVER * W / LEEWAY tokens of its band's service, and
then waits as everybody does. Worked number: weights 1 and 1: 8,192 * 2 / 1.25 = 13,107.

Lives for one decision. Knows what workers were told of shares last; knows no policy and no order.
"""

from collections.abc import Iterable
from math import ceil

from scheduler.core.credits import WorkerCredits
from scheduler.core.request import WaitingRequest
from services.domain.generation import Band


class KeptSeats:
    """Who may take which seats, as the candidates of one decision come by in their order.

    Args:
        part: Of a worker's seats, up to which tenants over their share are placed.
    """

    def __init__(self, part: float) -> None:
        self._part = part
        self._held: Band | None = None
        """Highest band of which somebody was held back."""

    def open_to(self, request: WaitingRequest, workers: Iterable[WorkerCredits]) -> list[WorkerCredits]:
        """Return those of the workers whose free seats the request may take."""
        tenant, band = request.acquire.tenant, request.acquire.band
        found = []
        for worker in workers:
            seats = worker.hello.capacity.max_sequences
            if worker.free_credits > seats - ceil(self._part * seats):
                found.append(worker)
            elif worker.over_share.get(tenant, 0.0) > 0.0:
                self._held = band if self._held is None else min(band, self._held)
            elif self._held is None or band <= self._held:
                found.append(worker)
        return found
