"""Every way a request ends: by itself, cancelled, by limits."""

import pytest

from services.domain.generation import FinishReason, Limits
from tests.fakes.engine_harness import (
    STEP_S,
    EngineHarness,
    engine_config,
    prompt,
    submit,
    tokens_alone,
)
from worker.engine.batch_builder import build_batch
from worker.engine.commands import Cancel, FinishChoice


@pytest.mark.failure("B001")
def test_a_cancel_acts_before_the_next_step() -> None:
    engine = EngineHarness(engine_config(num_pages=30))
    for handle in range(100):
        engine.post(submit(handle, prompt(40, handle), max_output=300))
        engine.steps(5)
        before = len(engine.tokens[handle, 0])
        engine.post(Cancel(handle))
        engine.step()
        assert len(engine.tokens[handle, 0]) == before
        assert engine.ended[handle].cancelled
        assert engine.scheduler.pool.num_held == 0
    engine.assert_idle()


@pytest.mark.failure("B003")
def test_cancelled_in_the_queue_is_never_prefilled() -> None:
    engine = EngineHarness()
    engine.post(*(submit(handle, prompt(16, handle), max_output=100) for handle in range(8)))
    engine.steps(5)
    engine.post(*(submit(handle, prompt(500, handle), max_output=2) for handle in range(100, 164)))
    engine.step()
    before = engine.totals["prefill"]
    engine.post(*(Cancel(handle) for handle in range(164)))
    engine.post(submit(200, prompt(10)))
    engine.step()
    assert engine.totals["prefill"] == before + 10
    engine.run()
    engine.assert_idle()


@pytest.mark.failure("B004")
def test_cancels_are_idempotent_and_unknown_ones_counted() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20)), Cancel(1), Cancel(1), Cancel(1), Cancel(99))
    engine.step()
    assert engine.last is not None
    assert engine.last.stats.unknown_cancels == 3
    engine.assert_idle()


@pytest.mark.failure("B029")
def test_a_cancel_posted_while_a_step_is_in_flight_waits_for_the_next_plan() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), max_output=50))
    engine.steps(3)
    plan = engine.scheduler.plan(engine.now)
    engine.post(Cancel(1), submit(2, prompt(30, 2)))
    result = engine.executor.execute(build_batch(plan))
    engine.record(engine.scheduler.apply(plan, result, engine.now))
    assert 1 not in engine.ended
    engine.run()
    assert engine.tokens[2, 0] == tokens_alone(prompt(30, 2))
    engine.assert_idle()


@pytest.mark.failure("B010")
def test_a_group_starts_and_ends_as_one() -> None:
    engine = EngineHarness()
    engine.post(*(submit(handle, prompt(20, handle), max_output=30) for handle in range(5)))
    engine.steps(3)
    engine.post(submit(10, prompt(40, 50), n=4, max_output=50))
    engine.steps(3)
    assert 10 not in engine.started, "three seats are not enough for four"
    while 10 not in engine.started:
        engine.step()
    engine.steps(10)
    assert all(engine.tokens[10, choice] for choice in range(4))
    engine.post(Cancel(10))
    engine.step()
    assert engine.ended[10].cancelled
    engine.run()
    engine.assert_idle()


def test_the_gateway_can_finish_one_choice() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), n=2, max_output=30))
    engine.steps(6)
    engine.post(FinishChoice(1, 0, FinishReason.STOP_STRING), FinishChoice(1, 0, FinishReason.BUDGET))
    engine.run()
    assert engine.reasons[1, 0] is FinishReason.STOP_STRING
    assert engine.reasons[1, 1] is FinishReason.LENGTH
    assert len(engine.tokens[1, 1]) == 30
    assert engine.ended[1].error is None


@pytest.mark.parametrize(
    ("limits", "which"),
    [
        (Limits(queue_s=3 * STEP_S), "queue"),
        (Limits(first_token_s=3 * STEP_S), "first_token"),
        (Limits(total_s=3 * STEP_S), "total"),
    ],
)
@pytest.mark.failure("B060")
def test_expired_work_is_dropped_before_prefill(limits: Limits, which: str) -> None:
    engine = EngineHarness(engine_config(max_sequences=1))
    engine.post(submit(1, prompt(20), max_output=50))
    engine.step()
    engine.post(submit(2, prompt(300, 2), limits=limits))
    engine.steps(6)
    error = engine.ended[2].error
    assert error is not None
    assert error.reason == "LIMIT_EXPIRED"
    assert error.detail.metadata == {"limit": which}
    assert engine.ended[2].computed_tokens == 0
    engine.run()
    engine.assert_idle()


def test_the_total_limit_ends_a_running_request_with_its_usage() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(10), max_output=500, limits=Limits(total_s=10.5 * STEP_S, queue_s=STEP_S)))
    engine.run()
    error = engine.ended[1].error
    assert error is not None
    assert error.detail.usage == engine.ended[1].usage
    assert error.detail.usage is not None
    assert error.detail.usage.output_tokens == len(engine.tokens[1, 0]) == 11
