"""What a worker's errors, stalls and deaths change for what is placed; time is a number here."""

import pytest

from scheduler.core.breaker import BreakerRules, State
from scheduler.core.fifo import FifoPolicy
from scheduler.core.outputs import Placed, Rejected
from scheduler.core.rules import Rules
from scheduler.core.state import SchedulerCore
from services.domain.errors import PromptQuarantined
from services.domain.ids import Epoch, WorkerId
from tests.unit.scheduler.builders import GATEWAY, acquire, hello, key, only, report

INTERNAL, CANCELLED = 13, 1
POISON = b"poison prompt..."


class Fleet:
    """A core with workers that have credit without end."""

    def __init__(self, num: int, *, breaker: BreakerRules | None = None, quarantine_s: float = 900.0) -> None:
        rules = Rules(breaker=breaker or BreakerRules(min_failures=5), quarantine_s=quarantine_s)
        self.core = SchedulerCore(rules, FifoPolicy(), 0.0)
        self.now = 0.0
        self.epochs = dict.fromkeys(range(num), 0)
        for number in range(num):
            self.boot(number)

    def boot(self, number: int) -> None:
        self.epochs[number] += 1
        name = f"worker-{number}"
        self.core.worker_connected(hello(name, epoch=self.epochs[number]), self.now)
        self.core.report(WorkerId(name), report(granted=1000), self.now)

    def only(self, *names: str) -> None:
        """Let these workers have credit and no others; without a name all of them."""
        for name in self.core.fleet.workers:
            granted = 1000 if not names or name in names else 0
            self.core.report(name, report(granted=granted), self.now)

    def dies(self, name: str) -> list[Rejected]:
        return only(Rejected, self.core.worker_gone(WorkerId(name), self.now))

    def asks(self, name: str, **fields: object) -> str | Rejected | None:
        """Ask for a place; return the worker, the refusal, or None while it waits."""
        outputs = self.core.acquire(GATEWAY, acquire(name, **fields), self.now)  # type: ignore[arg-type]
        if rejected := only(Rejected, outputs):
            return rejected[0]
        return next((one.worker for one in only(Placed, self.core.place(self.now))), None)

    def ends(self, worker: str, name: str, code: int = 0, attempt: int = 1) -> None:
        one = key(name, attempt)
        failures = {one: code} if code else {}
        news = report(granted=1000, ended=[one], failures=failures)
        self.core.report(WorkerId(worker), news, self.now)

    def fails_five(self, worker: str) -> None:
        """Five requests with prompts of their own end by NaN rows on one worker."""
        self.only(worker)
        for i in range(5):
            assert self.asks(f"nan{i}", digest=bytes([i])) == worker
            self.ends(worker, f"nan{i}", INTERNAL)
        self.only()


@pytest.mark.parametrize("is_on", [True, False])
def test_a_worker_whose_rows_are_nan_gets_nothing_until_one_request_tries_it(is_on: bool) -> None:
    fleet = Fleet(2, breaker=BreakerRules(min_failures=5 if is_on else 0))
    fleet.fails_five("worker-0")
    workers = {fleet.asks(f"next{i}", digest=bytes([100 + i])) for i in range(6)}
    assert ("worker-0" in workers) is not is_on
    if not is_on:
        return
    wakes_at = fleet.core.faults.next_wake()
    assert wakes_at is not None
    fleet.now = wakes_at
    there = [fleet.asks(f"try{i}", digest=bytes([120 + i])) for i in range(6)]
    assert there.count("worker-0") == 1, "half open: one request at a time"
    fleet.ends("worker-0", f"try{there.index('worker-0')}")
    assert fleet.core.faults.breakers[WorkerId("worker-0")].state is State.CLOSED


def test_a_request_waits_for_the_only_worker_to_be_tried_again() -> None:
    fleet = Fleet(1)
    fleet.fails_five("worker-0")
    assert fleet.asks("waits") is None
    wakes_at = fleet.core.next_wake()
    assert wakes_at is not None
    fleet.now = max(wakes_at, fleet.core.faults.breakers[WorkerId("worker-0")].until)
    assert [one.worker for one in only(Placed, fleet.core.place(fleet.now))] == ["worker-0"]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_stalled_worker_gets_nothing_while_it_says_so(is_on: bool) -> None:
    fleet = Fleet(2, breaker=BreakerRules(min_failures=5 if is_on else 0))
    fleet.core.report(WorkerId("worker-0"), report(granted=1000, running=1, stuck_s=11.0), 0.0)
    workers = {fleet.asks(f"r{i}") for i in range(6)}
    assert ("worker-0" in workers) is not is_on


def test_a_probe_that_is_cancelled_lets_the_next_request_try() -> None:
    fleet = Fleet(1)
    fleet.fails_five("worker-0")
    fleet.now = 6.0
    assert fleet.asks("first") == "worker-0"
    assert fleet.asks("second") is None
    fleet.ends("worker-0", "first", CANCELLED)
    assert [one.acquire.key for one in only(Placed, fleet.core.place(fleet.now))] == [key("second")]


def test_a_worker_that_dies_at_every_start_is_tried_by_one_request_at_a_time() -> None:
    fleet = Fleet(1)
    for _ in range(3):
        fleet.dies("worker-0")
        fleet.boot(0)
    assert fleet.asks("a", digest=b"a") is None
    fleet.now = 6.0
    assert [one.acquire.key for one in only(Placed, fleet.core.place(fleet.now))] == [key("a")]
    assert fleet.asks("b", digest=b"b") is None


def test_a_worker_that_was_told_to_leave_did_not_die() -> None:
    fleet = Fleet(2)
    for i in range(3):
        fleet.only("worker-0")
        assert fleet.asks(f"r{i}", digest=POISON) == "worker-0"
        fleet.core.drain(WorkerId("worker-0"), 0.0)
        assert fleet.dies("worker-0") == []
        fleet.boot(0)
    assert fleet.core.faults.quarantine.is_empty
    fleet.only("worker-0")
    assert fleet.asks("r", digest=POISON) == "worker-0"


@pytest.mark.failure("B183")
@pytest.mark.parametrize("is_on", [True, False])
def test_a_prompt_that_brought_down_two_workers_gets_no_third(is_on: bool) -> None:
    fleet = Fleet(4, quarantine_s=900.0 if is_on else 0.0)
    num_died = 0
    for i in range(4):
        answer = fleet.asks(f"caller{i}", digest=POISON)
        if isinstance(answer, Rejected):
            assert type(answer.error) is PromptQuarantined
            assert answer.error.detail.metadata["digest"] == POISON.hex()
            continue
        assert answer is not None
        fleet.dies(answer)
        num_died += 1
    assert num_died == (2 if is_on else 4)


@pytest.mark.failure("B183")
def test_the_gateway_may_be_quicker_than_the_stream_of_a_dying_worker() -> None:
    fleet = Fleet(3)
    first = fleet.asks("r", digest=POISON)
    second = fleet.asks("r", attempt=2, digest=POISON, avoid=[first])
    assert second not in (first, None)
    # Only now the scheduler sees the first one die; then the second.
    fleet.dies(str(first))
    fleet.dies(str(second))
    assert isinstance(fleet.asks("again", digest=POISON), Rejected)


def test_what_waits_with_a_quarantined_prompt_is_refused_at_once_and_others_are_not() -> None:
    fleet = Fleet(2)
    for i in range(2):
        fleet.only(f"worker-{i}")
        assert fleet.asks(f"r{i}", digest=POISON) == f"worker-{i}"
    fleet.dies("worker-0")
    fleet.only("nobody")
    assert fleet.asks("same", digest=POISON) is None
    assert fleet.asks("other", digest=b"other") is None
    assert [one.acquire.key for one in fleet.dies("worker-1")] == [key("same")]


def test_suspects_are_kept_apart_so_that_company_is_not_blamed() -> None:
    fleet = Fleet(3)
    fleet.only("worker-0")
    for name, digest in (("bad", POISON), ("good", b"good")):
        assert fleet.asks(name, digest=digest) == "worker-0"
    fleet.dies("worker-0")
    fleet.only()
    bad = fleet.asks("bad", attempt=2, digest=POISON)
    good = fleet.asks("good", attempt=2, digest=b"good")
    assert {bad, good} == {"worker-1", "worker-2"}
    fleet.dies(str(bad))
    quarantine = fleet.core.faults.quarantine
    assert [one.digest for one in quarantine.entries(0.0)] == [POISON]
    assert quarantine.is_suspect(b"good", 0.0)
    fleet.ends(str(good), "good", attempt=2)
    assert not quarantine.is_suspect(b"good", 0.0)


@pytest.mark.failure("B183")
@pytest.mark.parametrize("is_gateway_first", [True, False])
def test_a_prompt_that_ends_well_between_deaths_is_quarantined_by_those_it_ran_apart_in(
    is_gateway_first: bool,
) -> None:
    """A tenant that sends it with a short output as well, which ends well."""
    fleet = Fleet(6)
    fleet.dies(str(fleet.asks("first", digest=POISON)))
    for i in range(2):
        fatal, harmless = fleet.asks(f"fatal{i}", digest=POISON), fleet.asks(f"harmless{i}", digest=POISON)
        assert isinstance(fatal, str)
        assert isinstance(harmless, str)
        if is_gateway_first:
            elsewhere = fleet.asks(f"fatal{i}", attempt=2, digest=POISON, avoid=[fatal])
            assert isinstance(elsewhere, str)
            fleet.ends(elsewhere, f"fatal{i}", CANCELLED, attempt=2)
        fleet.dies(fatal)
        fleet.ends(harmless, f"harmless{i}")
    assert isinstance(fleet.asks("again", digest=POISON), Rejected)
    assert len(fleet.core.fleet.workers) == 3


def test_a_suspect_waits_for_a_worker_without_one() -> None:
    fleet = Fleet(2)
    fleet.only("worker-0")
    for name in "ab":
        assert fleet.asks(name, digest=name.encode()) == "worker-0"
    fleet.dies("worker-0")
    fleet.only()
    assert fleet.asks("a", attempt=2, digest=b"a") == "worker-1"
    assert fleet.asks("b", attempt=2, digest=b"b") is None
    assert fleet.asks("new", digest=b"new") == "worker-1", "who is no suspect passes"
    fleet.ends("worker-1", "a", attempt=2)
    assert [one.acquire.key for one in only(Placed, fleet.core.place(0.0))] == [key("b", 2)]


def test_a_stream_that_blips_blames_nobody() -> None:
    fleet = Fleet(1)
    for i in range(3):
        assert fleet.asks(f"r{i}", digest=POISON) == "worker-0"
        fleet.dies("worker-0")
        fleet.core.worker_connected(hello("worker-0", epoch=1, live=[key(f"r{i}")]), 0.0)
        fleet.core.report(WorkerId("worker-0"), report(granted=1000), 0.0)
        assert fleet.core.live.digest(key(f"r{i}")) == POISON
    assert fleet.core.faults.quarantine.is_empty


def test_an_attempt_avoids_the_boot_that_failed_and_not_the_next_one() -> None:
    fleet = Fleet(1)
    asked = acquire("r", attempt=2)._replace(avoid=frozenset({(WorkerId("worker-0"), Epoch(1))}))
    fleet.dies("worker-0")
    fleet.boot(0)
    fleet.core.acquire(GATEWAY, asked, 0.0)
    assert [one.epoch for one in only(Placed, fleet.core.place(0.0))] == [2]
