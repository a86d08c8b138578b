"""A book of slices and a fleet of workers that answer it at once.

Knows versions and limits; knows nothing of the manager, its streams or real pools.
"""

from kvmanager.core.slices import JOIN_S, SliceBook
from services.domain.ids import TenantId, WorkerId
from services.domain.slices import NO_SLICES, SliceInForce, SlicesInForce

T = TenantId("t")
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


class Fleet:
    """A book, and workers that say at once that they have applied what is pushed, unless told not to."""

    def __init__(self, cap: int = 100, expect_workers: int = 1) -> None:
        self.book = SliceBook({T: cap}, expect_workers=expect_workers)
        self.now = 0.0
        self.silent: set[WorkerId] = set()
        self.said: dict[WorkerId, SlicesInForce] = {}
        self.bounds: dict[WorkerId, int] = {}
        """What running sequences may still come to hold."""
        self.needs: dict[WorkerId, tuple[int, float]] = {}
        """And since when."""

    def join(self, *workers: WorkerId, pages: int = 1000, said: SlicesInForce = NO_SLICES) -> None:
        for worker in workers:
            self.book.add_worker(worker, pages, said, self.now)
            self.push(worker)

    def push(self, worker: WorkerId) -> None:
        version, limits = self.book.push(worker)
        if worker not in self.silent:
            self.say(worker, version, limits[T])

    def say(self, worker: WorkerId, version: int | None = None, limit: int | None = None) -> None:
        """Say that a version is applied, or say anew what was said before."""
        last = self.said.get(worker, NO_SLICES)
        limit = last.tenants[T].max_pages if limit is None else limit
        needs, since = self.needs.get(worker, (0, self.now))
        one = SliceInForce(
            max_pages=limit,
            bound=max(limit, self.bounds.get(worker, 0)),
            held=self.bounds.get(worker, 0),
            needs=needs,
            waited_s=self.now - since,
        )
        said = SlicesInForce(version=last.version if version is None else version, tenants={T: one})
        self.said[worker] = said
        self.book.applied(worker, said, self.now)

    def need(self, worker: WorkerId, pages: int) -> None:
        self.needs[worker] = pages, self.now
        self.say(worker)

    def hold(self, worker: WorkerId, pages: int) -> None:
        """Running sequences hold so much, and can come to no more."""
        self.bounds[worker] = pages
        self.say(worker)

    def rebalance(self, after_s: float = 0.0) -> set[WorkerId]:
        """Let the book move pages until it wants no more; return who was pushed to."""
        self.now += after_s
        pushed: set[WorkerId] = set()
        while changed := self.book.rebalance(self.now):
            pushed |= changed
            for worker in changed:
                self.push(worker)
            if changed <= self.silent:
                break
        return pushed

    def limit(self, worker: WorkerId) -> int:
        return self.book.push(worker)[1][T]

    @property
    def limits(self) -> list[int]:
        return [self.book._workers[worker].slices[T].limit for worker in (A, B)]


def two(cap: int = 100) -> Fleet:
    fleet = Fleet(cap, expect_workers=2)
    fleet.join(A, B)
    fleet.rebalance(JOIN_S)
    return fleet
