"""A quarantine outlives its scheduler, and no store is needed for it to work."""

import pytest

from scheduler.core.quarantine import NUM_WORKERS, Quarantine
from scheduler.quarantine_keeper import QuarantineKeeper
from services.domain.errors import DependencyDown
from services.domain.ids import Epoch, WorkerId
from tests.fakes.quarantine_memory import MemoryQuarantine

KEEP_S = 100.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Term:
    """One scheduler over a store: its quarantine and what keeps it."""

    def __init__(self, store: MemoryQuarantine, clock: Clock) -> None:
        self.quarantine = Quarantine(KEEP_S)
        self.clock = clock
        self.keeper = QuarantineKeeper(store, lambda: self.quarantine, clock)

    def deaths(self, *digests: bytes) -> None:
        for number in range(NUM_WORKERS):
            self.quarantine.died((WorkerId(f"worker-{number}"), Epoch(1)), digests, self.clock.now)

    def refuses(self, digest: bytes) -> bool:
        return self.quarantine.find(digest, self.clock.now) is not None


async def test_a_prompt_that_brought_down_two_workers_gets_no_third_after_a_restart() -> None:
    clock = Clock()
    store = MemoryQuarantine(clock)
    before = Term(store, clock)
    before.deaths(b"bad")
    await before.keeper.follow()
    clock.now += 0.4 * KEEP_S
    after = Term(store, clock)
    assert not after.refuses(b"bad"), "without the store it would get one"
    await after.keeper.follow()
    assert after.refuses(b"bad")
    (entry,) = after.quarantine.entries(clock.now)
    assert entry.num_workers == NUM_WORKERS
    clock.now += 0.7 * KEEP_S
    assert not after.refuses(b"bad"), "its time went on"


async def test_a_new_term_of_the_same_process_begins_with_it_too() -> None:
    clock = Clock()
    term = Term(MemoryQuarantine(clock), clock)
    term.deaths(b"bad")
    await term.keeper.follow()
    term.quarantine = Quarantine(KEEP_S)
    await term.keeper.follow()
    assert term.refuses(b"bad")


async def test_what_an_operator_released_stays_released() -> None:
    clock = Clock()
    store = MemoryQuarantine(clock)
    term = Term(store, clock)
    term.deaths(b"bad", b"worse")
    await term.keeper.follow()
    assert term.quarantine.release(b"bad")
    await term.keeper.follow()
    assert set(await store.load()) == {b"worse"}


async def test_a_silent_store_changes_nothing_and_hears_of_all_later() -> None:
    clock = Clock()
    store = MemoryQuarantine(clock)
    store.is_down = True
    term = Term(store, clock)
    term.deaths(b"bad")
    for _ in range(2):
        with pytest.raises(DependencyDown):
            await term.keeper.follow()
        assert term.refuses(b"bad")
    store.is_down = False
    await term.keeper.follow()
    assert set(await store.load()) == {b"bad"}


async def test_a_scheduler_that_suspects_nobody_restores_nobody() -> None:
    clock = Clock()
    store = MemoryQuarantine(clock)
    await store.keep({b"bad": KEEP_S})
    off = Quarantine(0.0)
    await QuarantineKeeper(store, lambda: off, clock).follow()
    assert off.is_empty
