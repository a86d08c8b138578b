"""Identical prompts that arrive together go where the first one's prefix is being computed."""

from collections import Counter

import pytest

from bench.tenants.cost import bytecodes
from scheduler.core.in_flight import LINGER_S, InFlight
from scheduler.core.outputs import Placed
from scheduler.core.request import Acquire, Match
from scheduler.core.state import SchedulerCore
from services.domain.ids import BlockHash, RequestId, WorkerId
from services.domain.miss_reason import MissReason
from tests.unit.scheduler.builders import GATEWAY, acquire, core, hello, key, only, report

W0, W1 = WorkerId("worker-0"), WorkerId("worker-1")
WORKERS = (W0, W1)
TOKENS, BLOCKS = 1000, 62
STEP = 512


class Fleet:
    """Two idle workers, and a kvmanager that has never seen anything."""

    def __init__(self, max_prefill_tokens: int = 256, page_size: int = 16) -> None:
        self.scheduler: SchedulerCore = core()
        self.scheduler.set_matching(True)
        for name in WORKERS:
            said = hello(
                name,
                pages=4096,
                page_size=page_size,
                max_step_tokens=STEP,
                max_prefill_tokens=max_prefill_tokens,
            )
            self.scheduler.worker_connected(said, 0.0)
            self.tell(name)

    def tell(self, worker: WorkerId, now: float = 0.0, **fields: object) -> None:
        self.scheduler.report(worker, report(granted=100, startable=4096, **fields), now)  # type: ignore[arg-type]

    def ask(self, asked: Acquire, now: float = 0.0) -> WorkerId:
        """Return where the request is placed."""
        self.scheduler.acquire(GATEWAY, asked, now)
        self.scheduler.place(now)
        match = Match(at=now, tokens={}, miss_reason=MissReason.NEVER_SEEN, first_miss_token=0)
        self.scheduler.match_answered(asked.key, match)
        (placed,) = only(Placed, self.scheduler.place(now))
        return placed.worker

    def ask_same(self, name: str, now: float = 0.0, tokens: int = TOKENS) -> WorkerId:
        return self.ask(acquire(name, tokens=tokens, blocks=tokens // 16), now)


def another(name: str, number: int) -> Acquire:
    """A prompt of the same length that shares nothing."""
    blocks = tuple(BlockHash(bytes([number, index]) * 8) for index in range(BLOCKS))
    return acquire(name, tokens=TOKENS)._replace(block_hashes=blocks)


@pytest.mark.parametrize("max_prefill_tokens", [256, STEP])
@pytest.mark.parametrize("tokens", [144, STEP, TOKENS])
def test_identical_prompts_go_where_the_first_one_is_computed(max_prefill_tokens: int, tokens: int) -> None:
    fleet = Fleet(max_prefill_tokens)
    assert {fleet.ask_same(f"r{number}", tokens=tokens) for number in range(2)} == {W0}


def test_eight_of_them_are_one_prefill() -> None:
    fleet = Fleet()
    assert {fleet.ask_same(f"r{number}") for number in range(8)} == {W0}
    view = fleet.scheduler.fleet.workers[W0]
    assert sum(one.uncached_tokens for one in view.outstanding.values()) == TOKENS + 7 * (
        TOKENS - 16 * BLOCKS
    )


def test_prompts_that_share_nothing_are_spread() -> None:
    """The control."""
    fleet = Fleet()
    where = Counter(fleet.ask(another(f"r{number}", number)) for number in range(2))
    assert where == {W0: 1, W1: 1}


def test_a_worse_queue_there_outweighs_it() -> None:
    """Each in company costs its own tokens and its part of every step: see the number in `placement`."""
    fleet = Fleet()
    where = [fleet.ask_same(f"r{number}") for number in range(15)]
    assert where == [W0] * 14 + [W1]


def test_a_queue_of_others_outweighs_it_too() -> None:
    fleet = Fleet()
    assert fleet.ask_same("first") == W0
    fleet.tell(W0, seen=1, started=[key("first")], running=1, waiting=2, waiting_tokens=TOKENS)
    assert fleet.ask_same("second") == W1


def test_siblings_that_wait_there_are_no_long_queue() -> None:
    """The worker counts their whole prompts, whether or not it has heard of their placements by then."""
    for seen in (1, 4):
        fleet = Fleet()
        for number in range(4):
            assert fleet.ask_same(f"r{number}") == W0
        fleet.tell(W0, seen=seen, started=[key("r0")], running=1, waiting=3, waiting_tokens=3 * TOKENS)
        assert fleet.ask_same("late") == W0, seen


def test_what_has_just_been_computed_counts_until_the_index_must_have_heard_of_it() -> None:
    for now, where in ((1.0 + LINGER_S / 2, W0), (1.0 + LINGER_S, W1)):
        fleet = Fleet()
        assert fleet.ask_same("first") == W0
        fleet.tell(W0, 1.0, seen=1, ended=[key("first")])
        assert fleet.ask_same("second", now) == where


def test_nothing_is_left_of_what_was_given_back_or_lost() -> None:
    fleet = Fleet()
    assert fleet.ask_same("given back") == W0
    fleet.scheduler.abandon(key("given back"), None)
    assert fleet.ask_same("next") == W1
    fleet.tell(W1, seen=1, ended=[key("next")])
    fleet.scheduler.worker_gone(W1, 0.0)
    fleet.scheduler.worker_connected(hello(W1, epoch=2, pages=4096), 0.0)
    fleet.tell(W1)
    assert len(fleet.scheduler.live.in_flight) == 0


def test_a_prefix_in_whole_pages_is_shared_and_no_more() -> None:
    fleet = Fleet(page_size=64)
    fleet.ask_same("first")
    fleet.ask_same("second")
    (first, second) = fleet.scheduler.fleet.workers[W0].outstanding.values()
    assert (first.uncached_tokens, second.uncached_tokens) == (TOKENS, TOKENS - 15 * 64)
    assert first.cached_tokens == 0
    assert second.cached_tokens == 15 * 64


def test_what_is_shared_ends_where_the_prompts_differ() -> None:
    in_flight, first = InFlight(), [BlockHash(bytes([i]) * 16) for i in range(40)]
    in_flight.begin(RequestId("a"), W0, first)
    for common in range(41):
        other = first[:common] + [BlockHash(bytes([i]) * 16) for i in range(100, 150)]
        assert in_flight.num_blocks(W0, other, 0) == common
        assert in_flight.num_blocks(W1, other, 0) == 0
    assert in_flight.num_blocks(W0, first[:30], 10) == 30
    assert in_flight.num_blocks(W0, first, 40) == 40


def of_a_decision(num_in_flight: int, num_blocks: int) -> int:
    """Return the bytecodes of one decision beside so many prompts in flight, of so many blocks each."""
    fleet = Fleet()
    in_flight = fleet.scheduler.live.in_flight
    blocks = tuple(BlockHash(number.to_bytes(16, "big")) for number in range(num_blocks))
    for number in range(num_in_flight):
        in_flight.begin(RequestId(f"f{number}"), WORKERS[number % 2], blocks)
    asked = acquire("one", tokens=2000)._replace(block_hashes=blocks)
    fleet.scheduler.acquire(GATEWAY, asked, 0.0)
    fleet.scheduler.place(0.0)
    match = Match(at=0.0, tokens={}, miss_reason=MissReason.NEVER_SEEN, first_miss_token=0)
    fleet.scheduler.match_answered(asked.key, match)
    placed: list[Placed] = []
    count = bytecodes(lambda: placed.extend(only(Placed, fleet.scheduler.place(0.0))))
    assert len(placed) == 1
    return count


def test_a_decision_costs_the_same_however_much_is_in_flight_and_however_long() -> None:
    few = of_a_decision(2, 124)
    assert 100 < of_a_decision(1000, 124) <= 1.01 * few
    assert of_a_decision(2, 124 * 64) <= 1.25 * few, "six more halves on each of two workers"
