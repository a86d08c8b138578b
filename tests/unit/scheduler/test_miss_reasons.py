"""The reason of a miss as the scheduler knows it: what is being computed is not called never seen."""

import pytest

from scheduler.core.in_flight import LINGER_S
from scheduler.core.outputs import Placed
from scheduler.core.request import Match
from scheduler.core.state import SchedulerCore
from services.domain.ids import Epoch, WorkerId
from services.domain.miss_reason import MissReason
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report

W0 = WorkerId("worker-0")


class Asking:
    """A scheduler with one worker, whose kvmanager answers what the test says."""

    def __init__(self) -> None:
        self.scheduler: SchedulerCore = core()
        self.scheduler.worker_connected(hello("worker-0", pages=4096, max_step_tokens=8192), 0.0)
        self.tell()
        self.scheduler.set_matching(True)

    def tell(self, now: float = 0.0, **fields: object) -> None:
        self.scheduler.report(W0, report(granted=100, startable=4096, **fields), now)  # type: ignore[arg-type]

    def ask(
        self,
        name: str,
        now: float = 0.0,
        *,
        reason: MissReason = MissReason.NEVER_SEEN,
        cached: int = 0,
        blocks: int = 4,
    ) -> MissReason:
        self.scheduler.acquire(GATEWAY, acquire(name, tokens=16 * blocks + 1, blocks=blocks), now)
        self.scheduler.place(now)
        tokens = {(W0, Epoch(1)): cached} if cached else {}
        match = Match(at=now, tokens=tokens, miss_reason=reason, first_miss_token=cached)
        self.scheduler.match_answered(key(name), match)
        (placed,) = only(Placed, self.scheduler.place(now))
        return placed.miss_reason


def test_a_block_that_an_earlier_request_computes_is_in_flight() -> None:
    asking = Asking()
    assert asking.ask("first") is MissReason.NEVER_SEEN
    assert asking.ask("same") is MissReason.IN_FLIGHT
    assert asking.ask("longer", blocks=6, cached=64) is MissReason.NEVER_SEEN


@pytest.mark.parametrize("reason", [MissReason.EVICTED_FOR_SPACE, MissReason.FIRST_DIFFERENCE])
def test_what_the_kvmanager_knows_better_stays(reason: MissReason) -> None:
    asking = Asking()
    asking.ask("first")
    assert asking.ask("same", reason=reason) is reason


def test_what_has_just_been_computed_is_in_flight_until_the_index_must_have_heard_of_it() -> None:
    asking = Asking()
    asking.ask("first")
    asking.tell(1.0, seen=1, ended=[key("first")])
    assert asking.ask("soon", 1.0 + LINGER_S / 2) is MissReason.IN_FLIGHT
    asking.tell(5.0, seen=2, ended=[key("soon")])
    assert asking.ask("later", 6.0 + LINGER_S) is MissReason.NEVER_SEEN


def test_what_was_given_back_or_lost_is_not_in_flight() -> None:
    asking = Asking()
    asking.ask("given back")
    asking.scheduler.abandon(key("given back"), None)
    assert asking.ask("next") is MissReason.NEVER_SEEN
    asking.scheduler.worker_gone(W0, 0.0)
    assert len(asking.scheduler.live.in_flight) == 0


def test_nothing_is_remembered_when_all_have_ended() -> None:
    asking = Asking()
    for number in range(50):
        asking.ask(f"r{number}", blocks=8, cached=16)
    asking.tell(1.0, seen=50, ended=[key(f"r{number}") for number in range(50)])
    asking.ask("last", 9.0, blocks=1)
    assert len(asking.scheduler.live.in_flight) == 1


def test_a_request_that_waits_and_is_asked_for_again_keeps_its_first_reason() -> None:
    """The kvmanager has heard of the prompt by then: it knows no longer what was new in it."""
    asking = Asking()
    scheduler = asking.scheduler
    scheduler.report(W0, report(granted=1, startable=0, running=1), 0.0)
    scheduler.acquire(GATEWAY, acquire("a", tokens=65, blocks=4), 0.0)
    for now, reason in ((0.0, MissReason.FIRST_DIFFERENCE), (1.0, MissReason.NEVER_SEEN)):
        scheduler.place(now)
        match = Match(at=now, tokens={(W0, Epoch(1)): 32}, miss_reason=reason, first_miss_token=32)
        scheduler.match_answered(key("a"), match)
        scheduler.place(now)
    asking.tell(1.05)
    (placed,) = only(Placed, scheduler.place(1.05))
    assert (placed.miss_reason, placed.first_miss_token) == (MissReason.FIRST_DIFFERENCE, 32)
