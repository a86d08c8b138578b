"""The step scheduler as a whole: progress, conservation, right tokens (the fake checks every page)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.bands import Bands
from services.domain.generation import FinishReason, Limits
from services.domain.ids import TenantId
from services.domain.kv_layout import PAGE_SIZES
from tests.fakes.engine_harness import (
    EngineHarness,
    drawn,
    engine_config,
    kv_checking_config,
    prompt,
    submit,
    tokens_alone,
)
from tests.fakes.kv_checking_executor import KvCheckingExecutor
from worker.engine.commands import Cancel, FinishChoice, SetRanks, SetSlices


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


@pytest.mark.failure("B020")
@pytest.mark.failure("B023")
@pytest.mark.failure("B029")
@pytest.mark.failure("B041")
@pytest.mark.failure("B160")
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), page_size=st.sampled_from(PAGE_SIZES[:3]))
def test_any_mix_of_requests_ends_and_gives_the_right_tokens(seed: int, page_size: int) -> None:
    """Tiny pools, groups, bands, tenants, limits, cancels, slices, bad rows: all end, nothing is held."""
    rng = random.Random(seed)
    # Half as long on pages of 32 as four pages of 16 hold: short enough to check each key, and pages fill.
    scale = 1 if page_size == 16 else page_size // 32
    config = engine_config(
        page_size=page_size,
        num_pages=rng.choice([4, 9, 20]),
        max_sequences=rng.choice([2, 5, 8]),
        max_step_tokens=rng.choice([17, 40]),
        max_prefill_tokens=rng.choice([3, 16, 31]),
        headroom_tokens=rng.choice([0, 2 * page_size]),
        max_preemptions=rng.choice([0, 1, 2]),
        max_bypass=rng.choice([0, 3]),
        max_prefix_wait_steps=rng.choice([0, 5]),
    )
    executor = KvCheckingExecutor(kv_checking_config(page_size))
    executor.faults.bad_token = 998
    engine = EngineHarness(config, executor, plans_on=rng.random() < 0.5)
    requests: dict[int, tuple[list[int], int]] = {}
    for handle in range(25):
        ids = prompt(rng.randrange(1, 60 * scale), rng.randrange(4))
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
                band=rng.choice(list(Bands())),
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
        expected = drawn(executor, ids, choice, len(tokens))
        assert tokens == expected
        assert len(tokens) <= max_output
