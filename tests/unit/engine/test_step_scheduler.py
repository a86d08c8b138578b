"""The step scheduler: progress, conservation, and every token's KV where it belongs (the fake checks it)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.errors import (
    Draining,
    InvalidField,
    PromptTooLong,
    QueueFull,
    QuotaExceeded,
    StaleAttempt,
)
from services.domain.generation import Band, FinishReason, Limits, SamplingParams
from services.domain.ids import TenantId
from tests.fakes.engine_harness import STEP_S, EngineHarness, engine_config, prompt, submit
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from worker.engine.batch import SampleRow
from worker.engine.batch_builder import build_batch
from worker.engine.commands import Cancel, Drain, FinishChoice, SetRanks, SetSlices, SnapshotKv
from worker.engine.kv_events import Removed, Stored
from worker.engine.outputs import Preempted
from worker.engine.prefix_wait import PrefixLeaders
from worker.engine.request import Request


def tokens_alone(*args: object, **kwargs: object) -> list[int]:
    """What the request gives with nothing else on a fresh engine."""
    engine = EngineHarness(engine_config(num_pages=256))
    engine.post(submit(1, *args, **kwargs))  # type: ignore[arg-type]
    engine.run()
    return engine.tokens[1, 0]


def test_a_request_runs_to_its_length() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(40), max_output=5))
    engine.run()
    ended = engine.ended[1]
    assert ended.error is None
    assert len(engine.tokens[1, 0]) == ended.usage.output_tokens == 5
    assert engine.reasons[1, 0] is FinishReason.LENGTH
    assert (ended.usage.prompt_tokens, ended.usage.cached_tokens, ended.computed_tokens) == (40, 0, 44)
    assert ended.peak_pages == 3
    assert ended.page_seconds > 0
    engine.assert_idle()


@pytest.mark.failure("B094")
@pytest.mark.parametrize("chunk", [7, 16, 24, 64])
def test_batched_and_chunked_give_what_alone_gives(chunk: int) -> None:
    engine = EngineHarness(engine_config(max_step_tokens=64, max_prefill_tokens=chunk))
    lengths = [1, 7, 15, 16, 17, 33, 100]
    engine.post(*(submit(i, prompt(n, i), max_output=20) for i, n in enumerate(lengths)))
    engine.run()
    for i, n in enumerate(lengths):
        assert engine.tokens[i, 0] == tokens_alone(prompt(n, i), max_output=20)


@pytest.mark.failure("B075")
def test_a_stop_id_ends_a_choice_but_not_below_the_minimum() -> None:
    free = tokens_alone(prompt(10), max_output=12)
    engine = EngineHarness()
    engine.post(
        submit(1, prompt(10), max_output=12, stop_ids=[free[4]]),
        submit(2, prompt(10), max_output=12, stop_ids=[free[4]], min_output=8),
    )
    engine.run()
    assert engine.tokens[1, 0] == free[:5]
    assert engine.reasons[1, 0] is FinishReason.STOP
    assert free[4] not in engine.tokens[2, 0][:8]
    assert len(engine.tokens[2, 0]) >= 8


# -- prefix cache --------------------------------------------------------------------------------------------


@pytest.mark.failure("B040")
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 48])
def test_a_fully_cached_prompt_still_computes_its_last_token(length: int) -> None:
    engine = EngineHarness()
    for handle in (1, 2, 3):
        engine.post(submit(handle, prompt(length), max_output=20))
        engine.run()
        assert engine.tokens[handle, 0] == engine.tokens[1, 0]
    assert engine.ended[2].usage.cached_tokens == (length - 1) // 16 * 16 <= length - 1
    engine.assert_idle()


def test_a_shared_prefix_moves_the_prefill_counter_by_the_rest_only() -> None:
    engine = EngineHarness(engine_config(num_pages=256, max_context_tokens=2048))
    shared = prompt(1000)
    engine.post(submit(1, shared + prompt(24, 5)))
    engine.run()
    before = engine.totals["prefill"]
    engine.post(submit(2, shared + prompt(24, 6)))
    engine.run()
    assert engine.ended[2].usage.cached_tokens == 992
    assert engine.totals["prefill"] - before == 32
    engine.post(submit(3, shared + prompt(24, 5), tenant="b"))
    engine.run()
    assert engine.ended[3].usage.cached_tokens == 0


@pytest.mark.failure("B042")
def test_only_computed_blocks_are_found() -> None:
    engine = EngineHarness(engine_config(max_step_tokens=24, max_sequences=4))
    engine.post(submit(1, prompt(100)))
    engine.step()
    engine.post(submit(2, prompt(100)))
    engine.run()
    assert engine.tokens[1, 0] == engine.tokens[2, 0]
    engine.assert_idle()


def test_output_blocks_are_found_by_the_next_turn() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), max_output=40))
    engine.run()
    engine.post(submit(2, prompt(20) + engine.tokens[1, 0] + prompt(5, 3)))
    engine.run()
    assert engine.ended[2].usage.cached_tokens == 48


def test_opting_out_neither_reads_nor_publishes() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(40), cache_opt_out=True))
    engine.run()
    assert engine.scheduler.pool.num_cached == 0
    engine.post(submit(2, prompt(40)))
    engine.run()
    engine.post(submit(3, prompt(40), cache_opt_out=True))
    engine.run()
    assert [engine.ended[handle].usage.cached_tokens for handle in (2, 3)] == [0, 0]


@pytest.mark.failure("B018")
def test_a_cancelled_conversation_keeps_its_full_blocks() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(200), max_output=100))
    engine.steps(20)
    engine.post(Cancel(1))
    engine.step()
    assert engine.scheduler.pool.num_held == 0
    engine.post(submit(2, prompt(200) + prompt(9, 4)))
    engine.run()
    assert engine.ended[2].usage.cached_tokens == 192


def test_identical_prompts_arriving_together_are_computed_once() -> None:
    engine = EngineHarness()
    engine.post(*(submit(handle, prompt(100), max_output=4) for handle in range(6)))
    engine.run()
    # 100 tokens once, and for each of the others its last 4.
    assert engine.totals["prefill"] == 100 + 5 * 4
    assert len({tuple(engine.tokens[handle, 0]) for handle in range(6)}) == 1


def test_whoever_waits_for_a_prefix_goes_on_when_its_leader_dies() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(100)), submit(2, prompt(100)), submit(3, prompt(100)))
    engine.step()
    engine.post(Cancel(1))
    engine.run()
    assert engine.tokens[2, 0] == engine.tokens[3, 0] == tokens_alone(prompt(100))
    engine.assert_idle()


def test_nobody_waits_for_a_leader_that_does_not_move() -> None:
    leader, waiter = (Request(submit(i, prompt(100)), arrival=i, now=0.0).sequences[0] for i in (1, 2))
    leaders = PrefixLeaders(max_wait_steps=3)
    blocks = leader.hashes(6)
    leaders.lead(leader, blocks)
    assert not leaders.should_wait(leader, blocks[0], step=1)
    assert [leaders.should_wait(waiter, blocks[0], step) for step in (1, 2, 4)] == [True] * 3
    leader.num_computed = 32
    assert [leaders.should_wait(waiter, blocks[2], step) for step in (5, 8, 9, 10)] == [
        True,
        True,
        False,
        False,
    ]
    leaders.resign(leader)
    assert len(leaders) == 0


def test_siblings_share_their_prompt_and_differ_in_their_draws() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(100), n=4, max_output=6))
    engine.run()
    assert engine.totals["prefill"] == 100 + 3 * 4
    assert len({tuple(engine.tokens[1, choice]) for choice in range(4)}) == 4
    assert engine.ended[1].usage.output_tokens == 24
    assert engine.ended[1].usage.cached_tokens == 0
    engine.assert_idle()


@pytest.mark.failure("B025")
@pytest.mark.failure("B090")
def test_a_bad_row_fails_alone_and_leaves_nothing_in_the_cache() -> None:
    engine = EngineHarness()
    poisoned = prompt(100)
    engine.executor.faults.bad_token = poisoned[0]
    mate = [token for token in prompt(50, 9) if token != poisoned[0]]
    engine.post(submit(1, poisoned), submit(2, mate))
    engine.run()
    assert engine.ended[1].error is not None
    assert engine.ended[1].error.reason == "BAD_LOGITS"
    assert engine.ended[2].error is None
    assert engine.tokens[2, 0] == tokens_alone(mate)
    engine.executor.faults.bad_token = None
    engine.post(submit(3, poisoned))
    engine.run()
    assert engine.ended[3].usage.cached_tokens == 0
    assert engine.tokens[3, 0] == tokens_alone(poisoned)
    engine.assert_idle()


def test_events_tell_exactly_what_the_snapshot_holds() -> None:
    engine = EngineHarness(engine_config(num_pages=20))
    for handle in range(8):
        engine.post(submit(handle, prompt(70 + handle, handle)))
        engine.run()
    known = set()
    for event in engine.kv_events:
        if isinstance(event, Stored):
            known.add(event.hash)
        elif isinstance(event, Removed):
            known.remove(event.hash)
    told: list[tuple[Stored, ...]] = []
    engine.post(SnapshotKv(told.append))
    engine.step()
    assert {block.hash for block in told[0]} == known
    assert len(known) == engine.scheduler.pool.num_cached > 0


# -- ends ----------------------------------------------------------------------------------------------------


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


# -- admission -----------------------------------------------------------------------------------------------


@pytest.mark.failure("B051")
@pytest.mark.failure("B067")
def test_what_can_never_fit_is_refused_with_numbers_and_the_rest_finishes() -> None:
    engine = EngineHarness(engine_config(num_pages=64, max_context_tokens=4096))
    engine.post(submit(1, prompt(1025), max_output=1))
    engine.post(submit(2, prompt(1024), max_output=1))
    engine.post(submit(3, prompt(1008), max_output=100))
    engine.post(*(submit(handle, prompt(20, handle)) for handle in range(10, 15)))
    engine.run()
    for handle, need in ((1, "65"), (3, "70")):
        error = engine.refused[handle].error
        assert isinstance(error, PromptTooLong)
        assert (error.detail.metadata["need"], error.detail.metadata["limit"]) == (need, "64")
    assert all(engine.ended[handle].error is None for handle in (2, *range(10, 15)))
    engine.assert_idle()


@pytest.mark.failure("B067")
def test_every_length_around_the_pool_is_refused_or_finishes() -> None:
    for length in range(95, 132):
        for max_output in (1, 17):
            engine = EngineHarness(engine_config(num_pages=8, max_step_tokens=16, max_sequences=4))
            engine.post(submit(1, prompt(length), max_output=max_output))
            engine.run()
            assert (1 in engine.refused) == (length + max_output - 1 > 128)
            engine.assert_idle()


@pytest.mark.failure("B091")
@pytest.mark.failure("B098")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prompt_ids": []}, "prompt"),
        ({"prompt_ids": [5, -1]}, "prompt"),
        ({"prompt_ids": [5, 1000]}, "prompt"),
        ({"prompt_ids": [2**31]}, "prompt"),
        ({"prompt_ids": [5], "stop_ids": [1000]}, "stop_token_ids"),
        ({"prompt_ids": [5], "max_output": 0}, "max_output_tokens"),
        ({"prompt_ids": [5], "n": 17}, "n"),
        ({"prompt_ids": [5], "output_ids": ([1001],)}, "output_ids"),
        ({"prompt_ids": [5], "sampling": SamplingParams(logit_bias={2**40: 1.0})}, "logit_bias"),
        ({"prompt_ids": [5], "sampling": SamplingParams(temperature=float("nan"))}, "sampling.temperature"),
        ({"prompt_ids": [5], "sampling": SamplingParams(top_p=0.0)}, "sampling.top_p"),
    ],
)
def test_bad_fields_are_refused_by_name_and_the_engine_lives(wrong: dict[str, object], field: str) -> None:
    engine = EngineHarness()
    engine.post(submit(1, **wrong), submit(2, prompt(20)))  # type: ignore[arg-type]
    engine.run()
    error = engine.refused[1].error
    assert isinstance(error, InvalidField)
    assert error.detail.field == field
    assert engine.ended[2].error is None


@pytest.mark.failure("B060")
def test_the_waiting_line_is_bounded() -> None:
    engine = EngineHarness(engine_config(max_waiting=10))
    engine.post(*(submit(handle, prompt(100, handle)) for handle in range(30)))
    engine.step()
    assert len(engine.refused) == 20
    assert all(isinstance(refused.error, QueueFull) for refused in engine.refused.values())
    engine.run()
    assert len(engine.ended) == 10


def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20)), Drain(), submit(2, prompt(20)))
    engine.run()
    assert engine.ended[1].error is None
    assert isinstance(engine.refused[2].error, Draining)


@pytest.mark.failure("B052")
def test_a_big_request_is_passed_a_bounded_number_of_times() -> None:
    config = engine_config(num_pages=80, max_context_tokens=2048, max_bypass=5, max_step_tokens=256)
    engine = EngineHarness(config)
    engine.post(submit(1, prompt(480), max_output=60))
    engine.steps(4)
    engine.post(submit(2, prompt(960, 2), max_output=4))
    engine.step()
    handle = 10
    while 2 not in engine.started:
        if engine.scheduler.num_live < 6:
            engine.post(submit(handle, prompt(64, handle), max_output=12))
            handle += 1
        engine.step()
        assert handle < 200
    order = list(engine.started)
    passed = order[1 : order.index(2)]
    assert 1 <= len(passed) <= 5
    engine.run()
    engine.assert_idle()


@pytest.mark.failure("B058")
def test_decodes_never_wait_for_a_prefill() -> None:
    engine = EngineHarness(engine_config(num_pages=400, max_context_tokens=4096))
    engine.post(*(submit(handle, prompt(10, handle), max_output=100) for handle in range(4)))
    engine.steps(6)
    engine.post(submit(10, prompt(3000, 10)), submit(11, prompt(200, 11)), submit(12, prompt(200, 12)))
    for _ in range(50):
        plan = engine.step()
        assert plan.num_decode_tokens >= 4
        assert plan.num_prefill_tokens <= 32
        assert all(row.is_decode for row in plan.rows[: plan.num_decode_tokens])
    assert engine.totals["prefill"] > 50 * 30


@pytest.mark.failure("B059")
def test_a_short_prompt_passes_a_long_prefill_and_the_long_one_goes_on() -> None:
    engine = EngineHarness(engine_config(num_pages=1000, max_context_tokens=16_000, max_sequences=32))
    engine.post(submit(1, prompt(12_000), max_output=2))
    engine.steps(3)
    engine.post(submit(2, prompt(20, 2), max_output=2))
    engine.steps(3)
    assert len(engine.tokens[2, 0]) == 2
    # A flood of short prompts that would fill every step: the long one still gets its turns.
    started = engine.totals["prefill"]
    for handle in range(10, 130):
        engine.post(submit(handle, prompt(64, handle), max_output=1))
        engine.step()
    short = sum(64 for handle in range(10, 130) if handle in engine.ended)
    assert engine.totals["prefill"] - started - short >= 120 * 64 / 10
    engine.run()
    engine.assert_idle()


def test_bands_are_served_in_order() -> None:
    engine = EngineHarness(engine_config(max_sequences=1))
    engine.post(submit(0, prompt(5, 0)))
    engine.step()
    engine.post(
        submit(1, prompt(5, 1), band=Band.BATCH),
        submit(2, prompt(5, 2), band=Band.STANDARD),
        submit(3, prompt(5, 3), band=Band.INTERACTIVE),
    )
    engine.run()
    assert list(engine.started) == [0, 3, 2, 1]


def test_a_tenant_at_its_slice_waits_and_blocks_nobody() -> None:
    engine = EngineHarness()
    engine.post(SetSlices({TenantId("a"): 4}))
    engine.post(submit(1, prompt(40, 1), max_output=20), submit(2, prompt(40, 2), max_output=20))
    engine.post(submit(3, prompt(40, 3), max_output=20, tenant="b"), submit(4, prompt(100, 4)))
    engine.step()
    assert isinstance(engine.refused[4].error, QuotaExceeded)
    assert set(engine.started) == {1, 3}
    peak = 0
    while engine.scheduler.num_live:
        engine.step()
        peak = max(peak, engine.scheduler.pool.held_by(TenantId("a")))
    assert peak <= 4
    assert engine.ended[2].error is None
    engine.assert_idle()


def test_a_slice_that_shrinks_below_a_request_ends_it_with_numbers() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(40), max_output=200))
    engine.steps(5)
    engine.post(SetSlices({TenantId("a"): 3}))
    engine.run()
    assert isinstance(engine.ended[1].error, QuotaExceeded)
    engine.assert_idle()


# -- preemption ----------------------------------------------------------------------------------------------


@pytest.mark.failure("B030")
@pytest.mark.failure("B032")
@pytest.mark.failure("B048")
@pytest.mark.failure("B053")
@pytest.mark.parametrize("headroom", [0, 2])
def test_sixty_four_that_fit_one_by_one_finish_on_a_pool_that_holds_three(headroom: int) -> None:
    config = engine_config(
        num_pages=18, max_context_tokens=128, max_waiting=64, max_sequences=16, headroom_pages=headroom
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
        assert engine.tokens[i, 0] == _expected(engine.executor, prompt(32, i), 0, 64)
    engine.assert_idle()


@pytest.mark.failure("B034")
def test_a_preempted_sequence_finds_its_own_pages_again() -> None:
    engine = EngineHarness(engine_config(num_pages=24, headroom_pages=0))
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
    engine = EngineHarness(engine_config(num_pages=12, headroom_pages=0))
    engine.post(*(submit(i, prompt(47, i), max_output=30, band=Band.BATCH) for i in range(4)))
    engine.steps(10)
    engine.post(submit(10, prompt(47, 10), max_output=5, band=Band.INTERACTIVE))
    plan = engine.step()
    assert 10 in engine.started
    assert plan.preempted
    assert not {id(seq) for seq in plan.preempted} & {id(row.sequence) for row in plan.rows}
    assert engine.last is not None
    assert any(isinstance(event, Preempted) for event in engine.last.events)
    engine.run()
    for i in range(4):
        assert engine.tokens[i, 0] == tokens_alone(prompt(47, i), max_output=30)
    engine.assert_idle()


def test_the_victim_is_of_the_tenant_furthest_over_its_share() -> None:
    engine = EngineHarness(engine_config(num_pages=8, headroom_pages=0))
    engine.post(SetRanks({TenantId("a"): -1.0, TenantId("b"): 2.0}))
    engine.post(submit(1, prompt(60, 1), max_output=20, tenant="b"))
    engine.post(submit(2, prompt(60, 2), max_output=20, tenant="a"))
    engine.run()
    assert (engine.ended[1].preemptions, engine.ended[2].preemptions) == (1, 0)


def test_after_its_last_preemption_a_sequence_runs_to_its_end() -> None:
    engine = EngineHarness(engine_config(num_pages=10, max_preemptions=1, headroom_pages=0, max_sequences=4))
    engine.post(*(submit(i, prompt(30, i), max_output=80) for i in range(4)))
    engine.run()
    assert max(engine.ended[i].preemptions for i in range(4)) == 1
    engine.assert_idle()


# -- attempts ------------------------------------------------------------------------------------------------


def test_the_same_key_attaches_from_where_its_side_has_got_to() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), max_output=20, request_id="r"))
    engine.steps(10)
    received = engine.tokens[1, 0][:4]
    engine.tokens[2, 0] = list(received)
    engine.post(submit(2, prompt(20), max_output=20, request_id="r", output_ids=(received,)))
    engine.run()
    assert engine.tokens[2, 0] == tokens_alone(prompt(20), max_output=20)
    assert 1 not in engine.ended
    assert engine.ended[2].usage.output_tokens == 20
    assert engine.totals["prefill"] == 20


def test_a_higher_attempt_supersedes_and_a_lower_one_is_refused() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), max_output=20, request_id="r", attempt=2))
    engine.steps(5)
    given = engine.tokens[1, 0]
    engine.tokens[3, 0] = list(given)
    engine.post(submit(2, prompt(20), request_id="r", attempt=1))
    engine.post(submit(3, prompt(20), max_output=20, request_id="r", attempt=3, output_ids=(tuple(given),)))
    engine.run()
    assert isinstance(engine.refused[2].error, StaleAttempt)
    assert isinstance(engine.ended[1].error, StaleAttempt)
    assert engine.tokens[3, 0] == tokens_alone(prompt(20), max_output=20)
    engine.post(submit(4, prompt(20), request_id="r", attempt=3))
    engine.run()
    assert isinstance(engine.refused[4].error, StaleAttempt)


def test_a_resumed_request_goes_on_as_if_nothing_had_happened() -> None:
    whole = tokens_alone(prompt(50), max_output=30)
    engine = EngineHarness()
    engine.tokens[1, 0] = whole[:13]
    engine.post(submit(1, prompt(50), max_output=30, attempt=2, output_ids=(tuple(whole[:13]),)))
    engine.tokens[2, 0] = list(whole)
    engine.post(submit(2, prompt(50), max_output=30, attempt=2, output_ids=(tuple(whole),)))
    engine.run()
    assert engine.tokens[1, 0] == whole
    assert engine.ended[1].usage.output_tokens == 30
    assert engine.reasons[2, 0] is FinishReason.LENGTH


# -- grants --------------------------------------------------------------------------------------------------


@pytest.mark.failure("B011")
def test_grants_come_back_to_where_they_began() -> None:
    engine = EngineHarness()
    engine.step()
    assert engine.last is not None
    assert engine.last.stats.granted == 8
    rng = random.Random(3)
    taken = 0
    for handle in range(200):
        ok = rng.random() < 0.7
        engine.post(submit(handle, prompt(20, handle) if ok else []))
        taken += 1
        if rng.random() < 0.3:
            engine.post(Cancel(handle))
        engine.steps(rng.randrange(4))
        assert engine.last.stats.granted - engine.last.stats.taken <= 8
    engine.run()
    assert engine.last.stats.taken == taken
    assert engine.last.stats.granted == taken + 8
    engine.assert_idle()


def test_no_grant_while_a_preempted_request_waits() -> None:
    config = engine_config(num_pages=18, max_context_tokens=128, max_sequences=16, headroom_pages=0)
    engine = EngineHarness(config)
    engine.post(*(submit(i, prompt(32, i), max_output=64) for i in range(16)))
    granted = preempted_steps = 0
    while engine.scheduler.num_live or not engine.ended:
        engine.step()
        assert engine.last is not None
        stats = engine.last.stats
        if stats.states.get("preempted"):
            assert stats.granted <= max(granted, stats.taken)
            preempted_steps += 1
        granted = stats.granted
    engine.step()
    assert engine.last is not None
    assert engine.last.stats.granted == 32
    assert preempted_steps > 0


# -- everything at once --------------------------------------------------------------------------------------


@pytest.mark.failure("B020")
@pytest.mark.failure("B023")
@pytest.mark.failure("B029")
@pytest.mark.failure("B041")
@pytest.mark.failure("B160")
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_mix_of_requests_ends_and_gives_the_right_tokens(seed: int) -> None:
    """Tiny pools, groups, bands, tenants, limits, cancels, slices, bad rows: all end, nothing is held."""
    rng = random.Random(seed)
    config = engine_config(
        num_pages=rng.choice([4, 9, 20]),
        max_sequences=rng.choice([2, 5, 8]),
        max_step_tokens=rng.choice([17, 40]),
        max_prefill_tokens=rng.choice([3, 16, 31]),
        headroom_pages=rng.choice([0, 2]),
        max_preemptions=rng.choice([0, 1, 2]),
        max_bypass=rng.choice([0, 3]),
        max_prefix_wait_steps=rng.choice([0, 5]),
    )
    executor = KvCheckingExecutor()
    executor.faults.bad_token = 998
    engine = EngineHarness(config, executor)
    requests: dict[int, tuple[list[int], int]] = {}
    for handle in range(25):
        ids = prompt(rng.randrange(1, 60), rng.randrange(4))
        if rng.random() < 0.1:
            ids = [*ids, 998]
        max_output = rng.randrange(1, 30)
        requests[handle] = (ids, max_output)
        limits = Limits(total_s=rng.uniform(0, 1)) if rng.random() < 0.2 else Limits()
        engine.post(
            submit(
                handle,
                ids,
                max_output=max_output,
                tenant=rng.choice("ab"),
                band=rng.choice(list(Band)),
                n=rng.choice([1, 1, 1, 2, 3]),
                limits=limits,
                cache_opt_out=rng.random() < 0.1,
            )
        )
        if rng.random() < 0.2:
            engine.post(Cancel(rng.randrange(handle + 1)))
        if rng.random() < 0.1:
            engine.post(SetSlices({TenantId("a"): rng.randrange(1, 20)}))
        if rng.random() < 0.1:
            engine.post(SetRanks({TenantId("a"): rng.uniform(-1, 1)}))
        if rng.random() < 0.1:
            engine.post(FinishChoice(rng.randrange(handle + 1), 0, FinishReason.STOP_STRING))
        engine.steps(rng.randrange(4))
    engine.post(SetSlices({}))
    engine.run()
    engine.assert_idle()
    assert set(engine.ended) | set(engine.refused) == set(requests)
    for (handle, choice), tokens in engine.tokens.items():
        ids, max_output = requests[handle]
        expected = _expected(executor, ids, choice, len(tokens))
        assert tokens == expected
        assert len(tokens) <= max_output


def _expected(executor: KvCheckingExecutor, ids: list[int], choice: int, count: int) -> list[int]:
    """Draw a choice's tokens one by one, without any engine."""
    output: list[int] = []
    for position in range(count):
        row = SampleRow(
            params=SamplingParams(), choice=choice, position=position, prompt_ids=ids, output_ids=output
        )
        output.append(int(executor.sim.draw([row]).token_ids[0]))
    return output
