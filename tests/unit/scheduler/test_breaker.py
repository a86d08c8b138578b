"""When one worker's breaker opens, tries and closes; time is a number here."""

import random

import pytest

from scheduler.core.breaker import Breaker, BreakerRules, Reason, State
from tests.unit.scheduler.builders import key

RULES = BreakerRules(min_failures=5)


def with_failures(num: int, rules: BreakerRules = RULES) -> Breaker:
    breaker = Breaker(rules)
    for i in range(num):
        breaker.failed(key(f"f{i}"), bytes([i]), 0.0)
    return breaker


def half_open(rules: BreakerRules = RULES) -> tuple[Breaker, float]:
    breaker = with_failures(5, rules)
    now = breaker.until
    breaker.tick(now)
    return breaker, now


def test_it_opens_at_the_fifth_failure_and_never_with_the_feature_off() -> None:
    assert with_failures(4).state is State.CLOSED
    breaker = with_failures(5)
    assert (breaker.state, breaker.reason, breaker.until) == (State.OPEN, Reason.ERRORS, RULES.open_s)
    off = with_failures(20, BreakerRules(min_failures=0))
    off.stuck(1000.0, 0.0)
    for _ in range(9):
        off.died(0.0)
    assert off.state is State.CLOSED


def test_failures_among_mostly_good_ends_do_not_open_it() -> None:
    breaker = Breaker(RULES)
    for i in range(200):
        breaker.ended_well(key(f"g{i}"), 0.0)
        if i % 3 == 0:
            breaker.failed(key(f"f{i}"), str(i).encode(), 0.0)
    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("is_counted", [True, False])
def test_ends_that_are_nobodys_fault_say_that_the_worker_works(is_counted: bool) -> None:
    breaker = Breaker(RULES)
    for i in range(10):
        for _ in range(2 if is_counted else 0):
            breaker.ended(0.0)
        breaker.failed(key(f"f{i}"), bytes([i]), 0.0)
    assert (breaker.state is State.CLOSED) is is_counted


def test_one_prompt_that_fails_again_and_again_counts_once() -> None:
    breaker = Breaker(RULES)
    for i in range(50):
        breaker.failed(key(f"f{i}"), b"the same", 0.0)
    assert breaker.state is State.CLOSED


def test_failures_longer_ago_than_the_window_do_not_count() -> None:
    breaker = with_failures(4)
    breaker.failed(key("late"), b"late", RULES.window_s)
    assert breaker.state is State.CLOSED


def test_half_open_it_lets_one_request_through_at_a_time() -> None:
    breaker, now = half_open()
    assert breaker.lets_through
    breaker.placed(key("probe"))
    assert not breaker.lets_through
    breaker.ended_well(key("placed before it opened"), now)
    breaker.failed(key("another one"), b"x", now)
    assert breaker.state is State.HALF_OPEN, "only the probe's outcome counts"
    breaker.released()
    assert breaker.lets_through, "a probe that was cancelled says nothing"


def test_a_good_probe_closes_it_and_a_bad_one_doubles_the_time() -> None:
    breaker, now = half_open()
    breaker.placed(key("probe"))
    breaker.failed(key("probe"), b"p", now)
    assert (breaker.state, breaker.until - now) == (State.OPEN, 2 * RULES.open_s)
    breaker.tick(breaker.until)
    breaker.placed(key("probe2"))
    breaker.ended_well(key("probe2"), now)
    assert breaker.state is State.CLOSED
    breaker.failed(key("one"), b"one", now)
    assert breaker.state is State.CLOSED, "what was before is forgotten"


def test_the_time_never_grows_beyond_its_bound_and_begins_anew_after_a_quiet_while() -> None:
    breaker, now = half_open()
    for i in range(20):
        breaker.placed(key(f"p{i}"))
        breaker.failed(key(f"p{i}"), b"", now)
        assert breaker.until - now <= RULES.max_open_s
        now = breaker.until
        breaker.tick(now)
    breaker.placed(key("good"))
    breaker.ended_well(key("good"), now)
    now += RULES.max_open_s
    for i in range(5):
        breaker.failed(key(f"f{i}"), bytes([i]), now)
    assert breaker.until - now == RULES.open_s


def test_the_third_death_in_a_while_opens_it_and_one_that_was_none_does_not_count() -> None:
    breaker = Breaker(RULES)
    breaker.died(0.0)
    breaker.died(1.0)
    breaker.lives()
    breaker.died(2.0)
    assert breaker.state is State.CLOSED
    breaker.died(3.0)
    assert (breaker.state, breaker.reason) == (State.OPEN, Reason.DEATHS)
    rare = Breaker(RULES)
    for i in range(10):
        rare.died(i * RULES.deaths_s)
    assert rare.state is State.CLOSED


def test_a_stall_opens_it_for_as_long_as_it_lasts() -> None:
    breaker = Breaker(RULES)
    breaker.stuck(RULES.stall_s / 2, 0.0)
    assert breaker.state is State.CLOSED
    for now in range(60):
        breaker.stuck(RULES.stall_s + now, float(now))
        breaker.tick(float(now))
        assert (breaker.state, breaker.reason) == (State.OPEN, Reason.STALL)
    breaker.stuck(0.0, 60.0)
    breaker.tick(breaker.until)
    assert breaker.state is State.HALF_OPEN


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_always_lets_somebody_through_again(seed: int) -> None:
    draw = random.Random(seed)
    breaker, now, live, num_opened, opened_at = Breaker(RULES), 0.0, [], 0, 0.0
    for i in range(2000):
        now += draw.expovariate(1.0)
        breaker.tick(now)
        if breaker.lets_through and draw.random() < 0.7:
            live.append(key(f"r{i}"))
            breaker.placed(live[-1])
        if live and draw.random() < 0.8:
            one = live.pop(draw.randrange(len(live)))
            if draw.random() < 0.5:
                breaker.failed(one, str(i).encode(), now)
            else:
                breaker.ended_well(one, now)
        if draw.random() < 0.02:
            breaker.died(now)
            live.clear()
        if breaker.num_opened != num_opened:
            num_opened, opened_at = breaker.num_opened, now
        assert breaker.state is not State.OPEN or breaker.until <= opened_at + RULES.max_open_s
        assert (breaker.probe is None) or breaker.state is State.HALF_OPEN
    breaker.tick(breaker.until)
    breaker.released()
    assert breaker.lets_through
