"""What a tenant may hold: it waits for its slice, says what it needs, and keeps what it was promised."""

import random

import pytest

from services.domain.errors import LimitExpired, QuotaExceeded
from services.domain.generation import Limits
from services.domain.ids import TenantId
from services.domain.slices import SliceInForce, SlicesInForce
from tests.fakes.engine_harness import EngineHarness, engine_config, prompt, submit
from worker.engine.commands import SetRanks, SetSlices

A = TenantId("a")


class Engine(EngineHarness):
    """Keeps what it says of its slices."""

    def __init__(self, **config: int) -> None:
        super().__init__(engine_config(**config))
        self.said: list[SlicesInForce] = []
        self.version = 0

    def record(self, outputs: object) -> None:
        super().record(outputs)  # type: ignore[arg-type]
        if outputs.slices is not None:  # type: ignore[attr-defined]
            self.said.append(outputs.slices)  # type: ignore[attr-defined]

    def give(self, pages: int, cap: int = 1000) -> None:
        self.version += 1
        self.post(SetSlices({A: pages}, version=self.version, caps={A: cap}))

    @property
    def last_said(self) -> SliceInForce:
        return self.said[-1].tenants[A]

    @property
    def held(self) -> int:
        return self.scheduler.pool.held_by(A)


def test_a_tenant_at_its_slice_waits_and_blocks_nobody() -> None:
    engine = Engine()
    engine.give(4)
    engine.post(submit(1, prompt(40, 1), max_output=20), submit(2, prompt(40, 2), max_output=20))
    engine.post(submit(3, prompt(40, 3), max_output=20, tenant="b"))
    engine.step()
    assert set(engine.started) == {1, 3}
    peak = 0
    while engine.scheduler.num_live:
        engine.step()
        peak = max(peak, engine.held)
    assert peak <= 4
    assert engine.ended[2].error is None
    engine.assert_idle()


def test_what_exceeds_the_cap_is_refused_at_once_with_numbers() -> None:
    engine = Engine()
    engine.give(2, cap=6)
    engine.post(submit(1, prompt(100), max_output=20))
    engine.step()
    error = engine.refused[1].error
    assert isinstance(error, QuotaExceeded)
    assert error.detail.quota == "tenant/kv_pages"
    assert (error.detail.metadata["need"], error.detail.metadata["limit"]) == ("8", "6")


def test_what_needs_more_than_its_slice_waits_and_says_so_with_numbers_until_it_has_it() -> None:
    engine = Engine()
    engine.give(4)
    engine.step()
    assert (engine.said[-1].version, engine.last_said.bound, engine.last_said.needs) == (1, 4, 0)
    engine.post(submit(1, prompt(100), max_output=20))
    engine.steps(3)
    assert engine.started == {}
    assert engine.last_said.needs == 8
    engine.give(8)
    engine.step()
    assert set(engine.started) == {1}
    assert (engine.said[-1].version, engine.last_said.max_pages, engine.last_said.needs) == (2, 8, 0)
    engine.run()
    assert engine.ended[1].error is None


def test_a_group_waits_for_a_slice_that_holds_all_of_it() -> None:
    engine = Engine()
    engine.give(10)
    engine.post(submit(1, prompt(40), max_output=20, n=4))
    engine.step()
    assert (engine.started, engine.last_said.needs) == ({}, 16)
    engine.give(16)
    engine.run()
    assert engine.ended[1].error is None


def test_waiting_for_a_slice_is_bounded_by_the_requests_own_limits() -> None:
    engine = Engine()
    engine.give(4)
    engine.post(submit(1, prompt(100), max_output=20, limits=Limits(queue_s=0.05)))
    engine.run()
    assert isinstance(engine.ended[1].error, LimitExpired)
    engine.step()
    assert engine.last_said.needs == 0


def test_a_cut_takes_nothing_from_what_runs_and_lets_nothing_start_before_that_has_ended() -> None:
    engine = Engine(num_pages=128)
    engine.give(50)
    engine.post(submit(1, prompt(40, 1), max_output=200), submit(2, prompt(40, 2), max_output=80))
    engine.steps(4)
    engine.give(16)
    engine.post(submit(3, prompt(20, 3), max_output=2))
    engine.step()
    assert (engine.last_said.max_pages, engine.last_said.bound) == (16, 15 + 8)
    while 2 not in engine.ended:
        assert 3 not in engine.started
        engine.step()
    engine.step()
    assert engine.last_said.bound == 16
    engine.run()
    assert engine.totals["preemptions"] == 0
    assert all(engine.ended[handle].error is None for handle in (1, 2, 3))


def test_a_preempted_sequence_that_no_longer_fits_asks_for_what_it_needs() -> None:
    engine = Engine(num_pages=16)
    engine.give(12)
    engine.post(SetRanks({A: 1.0}), submit(1, prompt(100, 1), max_output=60))
    engine.post(submit(2, prompt(60, 2), tenant="b", max_output=130))
    while not engine.totals["preemptions"]:
        engine.step()
    engine.give(2)
    engine.steps(2)
    needs = engine.last_said.needs
    assert needs > 2
    engine.give(needs)
    engine.run()
    assert engine.ended[1].error is None
    assert engine.ended[2].error is None


def test_a_cap_that_shrinks_below_what_waits_ends_it_with_numbers() -> None:
    engine = Engine()
    engine.give(4)
    engine.post(submit(1, prompt(100), max_output=20))
    engine.step()
    engine.give(4, cap=4)
    engine.run()
    error = engine.ended[1].error
    assert isinstance(error, QuotaExceeded)
    assert (error.detail.metadata["need"], error.detail.metadata["limit"]) == ("8", "4")
    engine.assert_idle()


def test_who_waits_for_a_slice_takes_no_seat_from_others() -> None:
    engine = Engine(max_sequences=4)
    engine.give(4)
    engine.post(*(submit(handle, prompt(100, handle)) for handle in range(4)))
    engine.step()
    assert engine.last is not None
    stats = engine.last.stats
    assert (stats.waiting, stats.granted - stats.taken) == (4, 4)
    engine.post(submit(9, prompt(40), tenant="b"))
    engine.step()
    assert set(engine.started) == {9}


def test_nothing_is_said_when_nothing_changes() -> None:
    engine = Engine()
    engine.give(20)
    engine.post(submit(1, prompt(40), max_output=100))
    engine.run()
    assert len(engine.said) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_tenant_never_holds_more_than_it_says_that_it_may(seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine(num_pages=48)
    engine.give(rng.randrange(48))
    handle = 0
    for _ in range(300):
        if rng.random() < 0.3:
            handle += 1
            ids, tenant = prompt(rng.randrange(1, 300), handle % 5), rng.choice("aab")
            engine.post(submit(handle, ids, max_output=rng.randrange(1, 80), tenant=tenant))
        if rng.random() < 0.1:
            engine.give(rng.randrange(48))
        engine.step()
        said = engine.last_said
        assert engine.held <= said.bound
        assert said.bound == engine.scheduler.pool.slices.bound_of(A)
    engine.give(48)
    engine.run()
    engine.assert_idle()
