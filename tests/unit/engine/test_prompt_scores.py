"""Requests that want log-probabilities of their prompt: which rows give them, and what they do without."""

import pytest

from services.domain.generation import Band, FinishReason
from tests.fakes.engine_harness import EngineHarness, engine_config, prompt, submit, tokens_alone
from tests.fakes.kv_checking_executor import KvCheckingExecutor, score
from worker.engine.commands import Submit
from worker.executors.sim import SimConfig, SimFaults


def scores_of(prompt_ids: list[int]) -> list[float]:
    return [score(prompt_ids[:place], prompt_ids[place]) for place in range(1, len(prompt_ids))]


@pytest.mark.parametrize("length", [1, 2, 16, 17, 63, 64, 65, 66, 130])
@pytest.mark.parametrize("max_output", [0, 1, 3])
def test_every_token_but_the_first_is_scored_in_order(length: int, max_output: int) -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(length), max_output=max_output, num_prompt_logprobs=2))
    engine.run()
    assert engine.scores[1] == scores_of(prompt(length))
    assert [len(top.token_ids) for top in engine.tops[1]] == [2] * (length - 1)
    assert len(engine.tokens[1, 0]) == max_output
    assert engine.reasons[1, 0] is FinishReason.LENGTH
    assert engine.ended[1].usage.prompt_tokens == length
    engine.assert_idle()


def test_no_alternatives_are_told_where_none_were_asked_for() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(20), num_prompt_logprobs=0))
    engine.run()
    assert len(engine.scores[1]) == 19
    assert engine.tops[1] == []


def test_scoring_changes_no_token_that_is_drawn() -> None:
    engine = EngineHarness()
    engine.post(
        submit(1, prompt(70), max_output=6, num_prompt_logprobs=0), submit(2, prompt(40, 1), max_output=6)
    )
    engine.run()
    assert engine.tokens[1, 0] == tokens_alone(prompt(70), max_output=6)
    assert engine.tokens[2, 0] == tokens_alone(prompt(40, 1), max_output=6)


@pytest.mark.failure("B045")
@pytest.mark.parametrize("max_output", [0, 1])
def test_a_cached_prompt_is_computed_again_for_its_scores(max_output: int) -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(80), max_output=1))
    engine.run()
    engine.post(submit(2, prompt(80), max_output=max_output, num_prompt_logprobs=5))
    engine.run()
    assert engine.started[2].cached_tokens == 0
    assert engine.scores[2] == scores_of(prompt(80))
    engine.post(submit(3, prompt(80), max_output=1))
    engine.run()
    assert engine.started[3].cached_tokens == 64, "what was scored serves hits as before"
    engine.assert_idle()


def test_a_scored_prompt_fills_the_cache() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(80), max_output=0, num_prompt_logprobs=0))
    engine.run()
    engine.post(submit(2, prompt(80), max_output=1))
    engine.run()
    assert engine.started[2].cached_tokens == 64


def test_logits_of_one_step_are_bounded_whatever_is_scored_at_once() -> None:
    engine = EngineHarness(engine_config(max_scored_tokens=10))
    for handle in range(1, 5):
        engine.post(submit(handle, prompt(40, handle), max_output=3, num_prompt_logprobs=0))
    engine.post(submit(5, prompt(40, 5), max_output=3))
    engine.run()
    assert max(engine.executor.num_output_rows) <= 10 + 5, "ten scores, and a token for each request"
    for handle in range(1, 5):
        assert engine.scores[handle] == scores_of(prompt(40, handle))
    engine.assert_idle()


def test_others_are_not_held_up_by_the_bound() -> None:
    engine = EngineHarness(engine_config(max_scored_tokens=4))
    engine.post(submit(1, prompt(60), max_output=1, num_prompt_logprobs=0))
    engine.post(submit(2, prompt(50, 2), max_output=1))
    engine.run()
    assert engine.token_times[2][0] < engine.token_times[1][0]


def test_a_preempted_prompt_goes_on_scoring_where_it_was() -> None:
    engine = EngineHarness(engine_config(num_pages=10, max_scored_tokens=20))
    engine.post(submit(1, prompt(90, 1), max_output=2, num_prompt_logprobs=1, band=Band.BATCH))
    engine.steps(3)
    known = len(engine.scores[1])
    engine.post(submit(2, prompt(100, 2), max_output=2, band=Band.INTERACTIVE))
    engine.run()
    assert engine.ended[1].preemptions == 1
    assert engine.scores[1] == scores_of(prompt(90, 1))
    assert engine.tokens[1, 0] == tokens_alone(prompt(90, 1), max_output=2)
    assert sum(engine.executor.num_output_rows) == 89 + 2 + 2, f"{known} were known and not scored again"
    engine.assert_idle()


def test_one_choice_of_several_scores_their_prompt() -> None:
    engine = EngineHarness()
    engine.post(submit(1, prompt(50), max_output=4, n=3, num_prompt_logprobs=0))
    engine.run()
    assert engine.scores[1] == scores_of(prompt(50))
    assert [len(engine.tokens[1, choice]) for choice in range(3)] == [4, 4, 4]
    assert sum(engine.executor.num_output_rows) == 49 + 3 * 4


def test_who_attaches_is_told_all_scores_again() -> None:
    engine = EngineHarness(engine_config(max_scored_tokens=8))
    engine.post(submit(1, prompt(40), max_output=2, num_prompt_logprobs=1, request_id="r"))
    engine.steps(3)
    known = len(engine.scores[1])
    assert 0 < known < 39
    engine.post(submit(7, prompt(40), max_output=2, num_prompt_logprobs=1, request_id="r"))
    engine.run()
    assert engine.scores[7] == scores_of(prompt(40))
    assert len(engine.tops[7]) == 39


def test_a_bad_row_among_the_scored_ones_ends_that_request_alone() -> None:
    executor = KvCheckingExecutor(SimConfig(vocab_size=1000, time_scale=0), SimFaults(bad_token=999))
    engine = EngineHarness(executor=executor)
    bad = [*prompt(20), 999, *prompt(19, 3)]
    engine.post(submit(1, bad, num_prompt_logprobs=0), submit(2, prompt(40, 2), num_prompt_logprobs=0))
    engine.run()
    assert engine.ended[1].error is not None
    assert engine.ended[1].error.reason == "BAD_LOGITS"
    assert engine.ended[2].error is None
    assert engine.scores[2] == scores_of(prompt(40, 2))
    engine.assert_idle()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (submit(1, prompt(4), num_prompt_logprobs=21), "num_prompt_logprobs"),
        (submit(1, prompt(4), max_output=-1, num_prompt_logprobs=0), "max_output_tokens"),
        (submit(1, prompt(4), max_output=0), "max_output_tokens"),
        (submit(1, [], max_output=0, num_prompt_logprobs=0), "prompt"),
    ],
)
@pytest.mark.failure("B098")
def test_wrong_submits_are_refused_by_field_and_the_engine_lives(wrong: Submit, field: str) -> None:
    engine = EngineHarness()
    engine.post(wrong, submit(2, prompt(4), max_output=1))
    engine.run()
    assert engine.refused[1].error.detail.field == field
    assert len(engine.tokens[2, 0]) == 1


def test_a_prompt_of_the_whole_context_needs_no_room_for_output() -> None:
    engine = EngineHarness(engine_config(max_context_tokens=96, num_pages=6))
    engine.post(submit(1, prompt(96), max_output=0, num_prompt_logprobs=0))
    engine.run()
    assert len(engine.scores[1]) == 95
    assert engine.ended[1].error is None
