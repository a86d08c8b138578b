"""Known failures of step loops and page pools: aborts inside a step, pauses of a prefill, held pages."""

import random

import pytest

from services.domain.block_hash import hash_blocks
from services.domain.generation import Band, SamplingParams
from services.domain.ids import TenantId
from tests.fakes.engine_harness import EngineHarness, drawn, engine_config, prompt, submit, tokens_alone
from worker.engine.batch_builder import build_batch
from worker.engine.commands import Cancel, SetSlices


@pytest.mark.failure("B004")
@pytest.mark.failure("B029")
def test_aborts_that_land_inside_a_step_leave_no_zombie() -> None:
    """Cancels of live, ended and unknown ids arrive while the device works, three times each."""
    rng = random.Random(4)
    engine = EngineHarness(engine_config(num_pages=40))
    cancelled: set[int] = set()
    for handle in range(300):
        engine.post(submit(handle, prompt(rng.randrange(1, 60), handle), max_output=rng.randrange(1, 12)))
        plan = engine.scheduler.plan(engine.now)
        result = engine.executor.execute(build_batch(plan)) if plan.num_rows else None
        for victim in rng.sample(range(handle + 2), min(handle + 1, rng.randrange(3))):
            engine.post(Cancel(victim), Cancel(victim), Cancel(victim))
            cancelled.add(victim)
        engine.record(engine.scheduler.apply(plan, result, engine.now))
        engine.now += 0.01
        if rng.random() < 0.5:
            engine.step()
    assert engine.run() < 300
    assert set(engine.ended) == set(range(300))
    assert 10 < sum(ended.cancelled for ended in engine.ended.values()) <= len(cancelled)
    for handle in range(300):
        if not engine.ended[handle].cancelled:
            assert len(engine.tokens[handle, 0]) == engine.ended[handle].usage.output_tokens > 0
    engine.assert_idle()


@pytest.mark.failure("B014")
def test_a_prefix_that_is_found_but_not_used_holds_no_page() -> None:
    """Requests hit a full cache and are then refused or cancelled: everything can still be evicted."""
    engine = EngineHarness(engine_config(num_pages=32))
    for seed in range(4):
        engine.post(submit(seed, prompt(120, seed), max_output=4))
        engine.run()
    cached = engine.scheduler.pool.num_cached
    assert cached >= 28
    engine.post(SetSlices({TenantId("a"): 2}, caps={TenantId("a"): 2}))
    for handle in range(100, 300):
        engine.post(submit(handle, prompt(120, handle % 4), max_output=4))
        engine.step()
        assert engine.scheduler.pool.num_held == 0
    assert set(engine.refused) == set(range(100, 300))
    engine.post(SetSlices({TenantId("a"): 9}), submit(300, prompt(100, 300), max_output=40))
    engine.step()
    for handle in range(301, 400):
        engine.post(submit(handle, prompt(120, handle % 4), max_output=4))
        engine.step()
        engine.post(Cancel(handle))
    engine.post(Cancel(300), SetSlices({}))
    engine.run()
    engine.assert_idle()
    engine.post(submit(500, prompt(16 * 31, 500), max_output=4))
    engine.run()
    assert engine.ended[500].error is None, "the whole pool can be had again"


@pytest.mark.failure("B023")
@pytest.mark.failure("B030")
def test_a_prefill_that_is_interrupted_between_chunks_goes_on_from_what_it_has() -> None:
    engine = EngineHarness(engine_config(num_pages=24, max_step_tokens=50, headroom_tokens=0))
    engine.post(submit(1, prompt(300, 1), max_output=10, band=Band.BATCH))
    engine.steps(3)
    assert engine.totals["prefill"] == 150, "paused inside its tenth block"
    engine.post(submit(2, prompt(280, 2), max_output=10, band=Band.INTERACTIVE))
    engine.run()
    assert engine.ended[1].preemptions > 0
    assert engine.tokens[1, 0] == tokens_alone(prompt(300, 1), max_output=10)
    assert engine.tokens[2, 0] == tokens_alone(prompt(280, 2), max_output=10)
    assert engine.ended[1].usage.prompt_tokens == 300
    assert engine.ended[1].usage.cached_tokens <= 300
    before = engine.totals["prefill"]
    engine.post(submit(3, prompt(300, 1), max_output=10))
    engine.run()
    assert engine.tokens[3, 0] == engine.tokens[1, 0]
    assert engine.totals["prefill"] - before == 300 - engine.ended[3].usage.cached_tokens
    engine.assert_idle()


@pytest.mark.failure("B030")
@pytest.mark.failure("B084")
def test_seeded_choices_are_the_same_after_preemption_and_beside_others() -> None:
    sampling = SamplingParams(seed=1234)
    engine = EngineHarness(engine_config(num_pages=18, max_context_tokens=128, headroom_tokens=0))
    engine.post(submit(0, prompt(40), max_output=50, n=2, sampling=sampling))
    engine.post(*(submit(i, prompt(30, i), max_output=60) for i in range(1, 6)))
    engine.run()
    assert engine.totals["preemptions"] > 0
    alone = EngineHarness(engine_config(num_pages=256))
    alone.post(submit(0, prompt(40), max_output=50, n=2, sampling=sampling))
    alone.run()
    for choice in range(2):
        assert engine.tokens[0, choice] == alone.tokens[0, choice]
    assert engine.tokens[0, 0] != drawn(engine.executor, prompt(40), 0, 50), "the seed matters"


@pytest.mark.failure("B042")
@pytest.mark.parametrize("chunk", [9, 24, 33])
def test_a_block_is_found_only_after_the_step_that_filled_it(chunk: int) -> None:
    engine = EngineHarness(engine_config(max_step_tokens=chunk))
    blocks = hash_blocks(prompt(120), salt=b"a")
    engine.post(submit(1, prompt(120)), submit(2, prompt(120)))
    pool, computed = engine.scheduler.pool, 0
    while computed < 120:
        plan = engine.scheduler.plan(engine.now)
        assert len(pool.match(blocks)) == computed // 16, "nothing of a step that is still running"
        result = engine.executor.execute(build_batch(plan))
        engine.record(engine.scheduler.apply(plan, result, engine.now))
        computed = min(120, computed + chunk)
        assert len(pool.match(blocks)) == computed // 16
    engine.run()
    assert engine.tokens[1, 0] == engine.tokens[2, 0] == tokens_alone(prompt(120))
    engine.assert_idle()


@pytest.mark.failure("B043")
@pytest.mark.parametrize("chunk", [16, 24, 100])
def test_all_chunks_of_a_prompt_are_found_again_and_going_on_is_no_hit(chunk: int) -> None:
    for length in (1, 16, 17, 100, 160, 200, 333):
        config = engine_config(num_pages=64, max_step_tokens=2 * chunk, max_prefill_tokens=chunk)
        engine = EngineHarness(config)
        engine.post(submit(1, prompt(length)))
        engine.run()
        assert engine.totals["hit"] == engine.ended[1].usage.cached_tokens == 0
        engine.post(submit(2, prompt(length)))
        engine.run()
        whole = (length - 1) // 16 * 16
        assert engine.totals["hit"] == engine.ended[2].usage.cached_tokens == whole


@pytest.mark.failure("B053")
def test_two_that_hold_cached_prefixes_and_want_the_last_page_both_finish() -> None:
    """Seven pages; one begins with 3 cached pages and needs 5, the other with 2 and needs 4."""
    engine = EngineHarness(engine_config(num_pages=7, headroom_tokens=0))
    for seed, length in ((1, 50), (2, 40)):
        engine.post(submit(seed, prompt(length, seed), max_output=1))
        engine.run()
    engine.post(submit(11, prompt(50, 1) + prompt(12, 3), max_output=18))
    engine.post(submit(12, prompt(40, 2) + prompt(6, 4), max_output=18))
    engine.run(max_steps=300)
    assert engine.ended[11].usage.cached_tokens > 0
    assert engine.ended[12].usage.cached_tokens > 0
    assert engine.tokens[11, 0] == tokens_alone(prompt(50, 1) + prompt(12, 3), max_output=18)
    assert engine.tokens[12, 0] == tokens_alone(prompt(40, 2) + prompt(6, 4), max_output=18)
    engine.assert_idle()


@pytest.mark.failure("B021")
def test_a_group_that_does_not_fit_takes_nothing_however_often_it_is_tried() -> None:
    """It finds its prefix each time, takes none of it, and does not make it look used."""
    tried, control = (EngineHarness(engine_config(num_pages=20)) for _ in range(2))
    for engine in (tried, control):
        for handle in (1, 2):
            engine.post(submit(handle, prompt(33, handle), max_output=1))
            engine.run()  # Leaves two cached blocks; those of 1 are the older ones.
        engine.post(submit(3, prompt(100, 3), max_output=150))
        while 3 not in engine.started:
            engine.step()
    tried.post(submit(4, prompt(33, 1) + prompt(160, 4), n=2, max_output=8))
    for _ in range(100):
        tried.step()
        control.step()
        assert tried.last is not None
        pools = [engine.scheduler.pool for engine in (tried, control)]
        counts = [(pool.num_free, pool.num_cached, pool.num_held) for pool in pools]
        assert counts[0] == counts[1]
    assert 4 not in tried.started
    tried.post(Cancel(4))
    for engine in (tried, control):
        engine.post(submit(5, prompt(120, 5), max_output=1))
        while 5 not in engine.started:
            engine.step()
    assert tried.kv_events == control.kv_events
    for engine in (tried, control):
        engine.run()
        engine.assert_idle()
