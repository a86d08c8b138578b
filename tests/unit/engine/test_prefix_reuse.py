"""What is computed once, and by whom it is found again."""

import pytest

from tests.fakes.engine_harness import (
    EngineHarness,
    engine_config,
    prompt,
    submit,
    tokens_alone,
)
from worker.engine.commands import Cancel, SnapshotKv
from worker.engine.kv_events import Removed, Stored
from worker.engine.prefix_wait import PrefixLeaders
from worker.engine.request import Request


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
    leader, waiter = (
        Request(submit(i, prompt(100)), arrival=i, now=0.0, page_size=16).sequences[0] for i in (1, 2)
    )
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
