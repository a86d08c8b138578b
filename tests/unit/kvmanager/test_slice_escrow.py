"""Whatever is lost, late or dead: what a tenant can come to hold anywhere is never above its cap."""

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmanager.core.slices import GONE_HOLD_S, SliceBook
from services.domain.ids import WorkerId
from tests.unit.kvmanager.slice_worker import SliceWorker, T

CAP = 64
NAMES = tuple(WorkerId(f"w{number}") for number in range(4))


class Escrow(RuleBasedStateMachine):
    """A book, its workers, and streams that lose everything in them when they break.

    A kvmanager that starts again knows the names of the workers that its predecessor counted, and no more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.num_workers = 1
        self.book = SliceBook({T: CAP})
        self.workers: dict[WorkerId, SliceWorker] = {}
        self.lost_at: dict[WorkerId, float] = {}
        self.counted: set[WorkerId] = set()
        """Names that the store knows."""

    @initialize(num_workers=st.integers(1, 4))
    def expect(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.book = SliceBook({T: CAP}, expect_workers=num_workers)

    # The fleet

    @rule(name=st.sampled_from(NAMES), pages=st.integers(1, 80))
    def boot(self, name: WorkerId, pages: int) -> None:
        """A worker starts, or starts again: what it had is gone with it."""
        if name in self.workers and self.workers[name].connected:
            self._break(name)
        self.workers[name] = SliceWorker(name, pages)
        self._connect(name)

    @precondition(lambda self: any(not w.connected for w in self.workers.values()))
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        self._connect(self._draw(data, lambda worker: not worker.connected))

    @precondition(lambda self: any(w.connected for w in self.workers.values()))
    @rule(data=st.data(), dies=st.booleans())
    def break_off(self, data: st.DataObject, dies: bool) -> None:
        """A stream breaks, with or without its worker."""
        name = self._draw(data, lambda worker: worker.connected)
        self._break(name)
        if dies:
            del self.workers[name]

    @rule()
    def restart(self) -> None:
        """The kvmanager starts again; the store names the workers that counted."""
        for name, worker in self.workers.items():
            worker.cut_off()
            self.lost_at.setdefault(name, self.now)
        first_version = int(1e6 * (self.now + 1))
        self.book = SliceBook({T: CAP}, expect_workers=self.num_workers, first_version=first_version)
        for name in self.counted:
            self.book.expect_back(name, self.now)

    # Messages

    @precondition(lambda self: any(w.coming for w in self.workers.values()))
    @rule(data=st.data())
    def deliver_to_worker(self, data: st.DataObject) -> None:
        self.workers[self._draw(data, lambda worker: bool(worker.coming))].read()

    @precondition(lambda self: any(w.posted for w in self.workers.values()))
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        worker = self.workers[self._draw(data, lambda worker: bool(worker.posted))]
        worker.apply()
        worker.start()
        worker.say(self.now)

    @precondition(lambda self: any(w.going for w in self.workers.values()))
    @rule(data=st.data())
    def deliver_to_manager(self, data: st.DataObject) -> None:
        name = self._draw(data, lambda worker: bool(worker.going))
        self.book.applied(name, self.workers[name].going.pop(0), self.now)
        self._rebalance()

    # Requests

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), pages=st.integers(1, CAP))
    def ask(self, data: st.DataObject, pages: int) -> None:
        worker = self.workers[self._draw(data, lambda worker: True)]
        worker.waiting.append((min(pages, worker.total_pages), self.now))
        worker.start()
        worker.say(self.now)

    @precondition(lambda self: any(w.running for w in self.workers.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        worker = self.workers[self._draw(data, lambda worker: bool(worker.running))]
        worker.end(data.draw(st.integers(0, len(worker.running) - 1)))
        worker.start()
        worker.say(self.now)

    @rule(passed_s=st.sampled_from((0.1, 1.0, 4.0, 12.0)))
    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        for name, at in list(self.lost_at.items()):
            if self.now - at >= GONE_HOLD_S - 12.0:  # Out of reach for so long it is dead: the assumption.
                del self.lost_at[name]
                self.workers.pop(name, None)
        self._rebalance()

    @invariant()
    def the_cap_holds(self) -> None:
        assert sum(worker.may_hold for worker in self.workers.values()) <= CAP
        assert self.book.in_force(T) <= CAP

    # Inside

    def _draw(self, data: st.DataObject, fits: object) -> WorkerId:
        names = sorted(name for name, worker in self.workers.items() if fits(worker))  # type: ignore[operator]
        return data.draw(st.sampled_from(names))

    def _connect(self, name: WorkerId) -> None:
        worker = self.workers[name]
        said = worker.state(self.now, posted=True)
        self.book.add_worker(name, worker.total_pages, said, self.now)
        worker.connected = True
        self.lost_at.pop(name, None)
        self.counted.add(name)
        self._push(name)
        self._rebalance()

    def _break(self, name: WorkerId) -> None:
        self.workers[name].cut_off()
        self.lost_at[name] = self.now
        self.book.lose_worker(name, self.now)

    def _rebalance(self) -> None:
        for name in self.book.rebalance(self.now):
            self._push(name)

    def _push(self, name: WorkerId) -> None:
        version, limits = self.book.push(name)
        self.workers[name].coming.append((version, limits[T]))


TestEscrow = Escrow.TestCase
TestEscrow.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    pools=st.lists(st.integers(8, 80), min_size=1, max_size=4),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(1, CAP)), max_size=16),
    data=st.data(),
)
def test_every_request_that_fits_its_pool_and_the_cap_is_started(
    pools: list[int], asked: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Messages arrive, sequences end: whatever the order, nobody waits for ever."""
    book = SliceBook({T: CAP}, expect_workers=len(pools))
    workers = [SliceWorker(name, pages, connected=True) for name, pages in zip(NAMES, pools, strict=False)]
    for worker in workers:
        book.add_worker(worker.name, worker.total_pages, worker.state(0.0), 0.0)
        worker.coming.append(push(book, worker))
    for number, (index, pages) in enumerate(asked):
        worker = workers[index % len(workers)]
        worker.waiting.append((min(pages, worker.total_pages), float(number)))
    now = 100.0
    for _ in range(60 + 30 * len(asked)):
        if not any(worker.waiting for worker in workers):
            break
        now += 0.5
        for worker in data.draw(st.permutations(workers)):
            while worker.coming:
                worker.read()
                worker.apply()
            while worker.start():
                pass
            if worker.running:
                worker.end(0)
            book.applied(worker.name, worker.state(now), now)
            for name in book.rebalance(now):
                other = workers[NAMES.index(name)]
                other.coming.append(push(book, other))
        assert sum(worker.may_hold for worker in workers) <= CAP
    assert not any(worker.waiting for worker in workers)


def push(book: SliceBook, worker: SliceWorker) -> tuple[int, int]:
    version, limits = book.push(worker.name)
    return version, limits[T]
