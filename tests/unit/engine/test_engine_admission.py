"""Who starts, who waits, and who is refused."""

import pytest

from services.domain.errors import (
    Draining,
    InvalidField,
    PromptTooLong,
    QueueFull,
)
from services.domain.generation import Band, SamplingParams
from services.domain.kv_layout import PAGE_SIZES
from tests.fakes.engine_harness import EngineHarness, engine_config, prompt, submit
from worker.engine.commands import Drain


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
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_length_around_the_pool_is_refused_or_finishes(page_size: int) -> None:
    """The pool holds 128 tokens, a step 16: lengths around both."""
    sizes = {"num_pages": 128 // page_size, "page_size": page_size}
    for length in (*range(14, 19), *range(95, 132)):
        for max_output in (1, 17):
            engine = EngineHarness(engine_config(**sizes, max_step_tokens=16, max_sequences=4))
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
        assert plan.num_decodes >= 4
        assert plan.num_prefill_tokens <= 32
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
