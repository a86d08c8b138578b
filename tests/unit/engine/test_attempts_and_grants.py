"""Attempts of one request, and what the worker promises to take."""

import random

import pytest

from services.domain.errors import (
    StaleAttempt,
)
from services.domain.generation import FinishReason
from tests.fakes.engine_harness import (
    EngineHarness,
    engine_config,
    prompt,
    submit,
    tokens_alone,
)
from worker.engine.commands import Cancel


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
    config = engine_config(num_pages=18, max_context_tokens=128, max_sequences=16, headroom_tokens=0)
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
