"""Pressure on the pool: victims, progress, the same tokens."""

import pytest

from services.domain.generation import Band
from services.domain.ids import TenantId
from tests.fakes.engine_harness import EngineHarness, drawn, engine_config, prompt, submit, tokens_alone
from worker.engine.commands import SetRanks
from worker.engine.outputs import Preempted


@pytest.mark.failure("B030")
@pytest.mark.failure("B032")
@pytest.mark.failure("B048")
@pytest.mark.failure("B053")
@pytest.mark.parametrize("headroom", [0, 32])
def test_sixty_four_that_fit_one_by_one_finish_on_a_pool_that_holds_three(headroom: int) -> None:
    config = engine_config(
        num_pages=18, max_context_tokens=128, max_waiting=64, max_sequences=16, headroom_tokens=headroom
    )
    engine = EngineHarness(config)
    engine.post(*(submit(i, prompt(32, i), max_output=64) for i in range(64)))
    engine.run()
    assert (engine.totals["preemptions"] > 0) == (headroom == 0)
    assert engine.totals["hit"] == 0, "what preemption finds again is not a hit"
    for i in range(64):
        assert engine.ended[i].error is None
        assert engine.ended[i].usage.prompt_tokens == 32
        assert engine.ended[i].preemptions <= config.max_preemptions
        assert engine.tokens[i, 0] == drawn(engine.executor, prompt(32, i), 0, 64)
    engine.assert_idle()


@pytest.mark.failure("B034")
def test_a_preempted_sequence_finds_its_own_pages_again() -> None:
    engine = EngineHarness(engine_config(num_pages=24, headroom_tokens=0))
    engine.post(submit(1, prompt(160, 1), max_output=100))
    engine.steps(4)
    engine.post(submit(2, prompt(160, 2), max_output=100))
    engine.run()
    assert engine.totals["preemptions"] >= 1
    assert engine.totals["resumed"] > 0
    assert engine.tokens[1, 0] == tokens_alone(prompt(160, 1), max_output=100)
    assert engine.tokens[2, 0] == tokens_alone(prompt(160, 2), max_output=100)


@pytest.mark.failure("B054")
def test_no_cascade_of_preemptions_under_pressure() -> None:
    """200 requests of 128 + 64 tokens, 32 at a time, on 30 % of the pages that 32 need at their peak."""
    config = engine_config(num_pages=115, max_sequences=32, max_step_tokens=256, max_prefill_tokens=128)
    engine = EngineHarness(config)
    submitted = steps_without_token = 0
    while len(engine.ended) < 200:
        while submitted < 200 and submitted - len(engine.ended) < 32:
            engine.post(submit(submitted, prompt(128, submitted), max_output=64))
            submitted += 1
        before = sum(map(len, engine.tokens.values()))
        engine.step()
        given = sum(map(len, engine.tokens.values())) > before
        steps_without_token = 0 if given else steps_without_token + 1
        assert steps_without_token < 5
    assert 0 < engine.totals["preemptions"] < 2 * 200
    engine.assert_idle()


@pytest.mark.failure("B055")
def test_a_higher_band_takes_pages_from_a_lower_one_and_the_plan_stays_whole() -> None:
    engine = EngineHarness(engine_config(num_pages=12, headroom_tokens=0))
    engine.post(*(submit(i, prompt(47, i), max_output=30, band=Band.BATCH) for i in range(4)))
    engine.steps(10)
    engine.post(submit(10, prompt(47, 10), max_output=5, band=Band.INTERACTIVE))
    plan = engine.step()
    assert 10 in engine.started
    assert plan.preempted
    in_step = [*plan.decodes.sequences, *(row.sequence for row in plan.prefills)]
    assert not {id(seq) for seq in plan.preempted} & {id(seq) for seq in in_step}
    assert engine.last is not None
    assert any(isinstance(event, Preempted) for event in engine.last.events)
    engine.run()
    for i in range(4):
        assert engine.tokens[i, 0] == tokens_alone(prompt(47, i), max_output=30)
    engine.assert_idle()


def test_the_victim_is_of_the_tenant_furthest_over_its_share() -> None:
    engine = EngineHarness(engine_config(num_pages=8, headroom_tokens=0))
    engine.post(SetRanks({TenantId("a"): -1.0, TenantId("b"): 2.0}))
    engine.post(submit(1, prompt(60, 1), max_output=20, tenant="b"))
    engine.post(submit(2, prompt(60, 2), max_output=20, tenant="a"))
    engine.run()
    assert (engine.ended[1].preemptions, engine.ended[2].preemptions) == (1, 0)


def test_after_its_last_preemption_a_sequence_runs_to_its_end() -> None:
    engine = EngineHarness(engine_config(num_pages=10, max_preemptions=1, headroom_tokens=0, max_sequences=4))
    engine.post(*(submit(i, prompt(30, i), max_output=80) for i in range(4)))
    engine.run()
    assert max(engine.ended[i].preemptions for i in range(4)) == 1
    engine.assert_idle()


def over_its_share_beside_one_that_waits(ranks: dict[str, float], **changes: int) -> EngineHarness:
    """Tenant "large" has all pages; "small" asks for some, and what may be over its share is said."""
    engine = EngineHarness(engine_config(num_pages=12, headroom_tokens=0, **changes))
    engine.post(*(submit(i, prompt(47, i), max_output=30, tenant="large") for i in range(4)))
    engine.steps(10)
    engine.post(SetRanks({TenantId(tenant): over for tenant, over in ranks.items()}))
    engine.post(submit(10, prompt(47, 10), max_output=5, tenant="small"))
    return engine


def test_inside_a_band_a_tenant_over_its_share_yields_to_one_that_is_not() -> None:
    engine = over_its_share_beside_one_that_waits({"large": 100.0})
    assert engine.step().preempted
    assert 10 in engine.started
    engine.run()
    for i in range(4):
        assert engine.tokens[i, 0] == tokens_alone(prompt(47, i), max_output=30)
        assert engine.ended[i].preemptions <= engine.config.max_preemptions
    engine.assert_idle()


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({}, id="nobody is ranked"),
        pytest.param({"large": -1.0}, id="within its share"),
        pytest.param({"large": 200.0, "small": 100.0}, id="both are over it"),
    ],
)
def test_inside_a_band_nobody_else_yields_to_an_arrival(ranks: dict[str, float]) -> None:
    engine = over_its_share_beside_one_that_waits(ranks)
    assert not engine.step().preempted
    assert 10 not in engine.started
    engine.run()
    engine.assert_idle()


def test_arrivals_take_a_request_its_place_a_bounded_number_of_times() -> None:
    """However long a tenant is said to be over its share, what it has running comes to its end."""
    engine = over_its_share_beside_one_that_waits({"large": 100.0}, max_preemptions=2)
    number = 10
    while len(engine.ended.keys() & set(range(4))) < 4:
        number += 1
        engine.post(submit(number, prompt(47, number), max_output=30, tenant="small"))
        engine.steps(5)
        assert number < 200, "the arrivals starve whoever is over its share"
    assert max(engine.ended[i].preemptions for i in range(4)) == 2, "its arrivals do take places"
    engine.run()
    engine.assert_idle()
