"""A long prompt beside short ones: who computes in which step."""

import pytest

from services.domain.generation import Band
from tests.fakes.engine_harness import EngineHarness, engine_config, prompt, submit

CHUNK = 32


def in_step(engine: EngineHarness) -> dict[int, int]:
    """Make a step; return its prefill tokens by handle."""
    return {row.sequence.request.handle: row.num_tokens for row in engine.step().prefills}


def long_ones_at_work(count: int = 1, band: Band = Band.STANDARD) -> EngineHarness:
    engine = EngineHarness(engine_config(max_step_tokens=CHUNK, max_prefill_tokens=CHUNK, num_pages=256))
    engine.post(*(submit(i, prompt(800, i), band=band) for i in range(count)))
    engine.step()
    return engine


def test_a_short_prompt_has_its_first_token_one_chunk_after_it_came() -> None:
    engine = long_ones_at_work()
    assert in_step(engine).keys() == {0}
    engine.post(submit(9, prompt(20, 9)))
    assert in_step(engine) == {9: 20}, "the chunk before has held it up once"
    assert engine.tokens[9, 0]
    assert in_step(engine).keys() == {0}, "nobody short is there any more"


def test_many_long_prompts_that_were_skipped_do_not_take_turns_before_a_short_one() -> None:
    engine = long_ones_at_work(count=4)
    # A stream of short prompts, each of which fills a step but for two tokens.
    for number in range(10, 60):
        engine.post(submit(number, prompt(CHUNK - 2, number), max_output=1))
        before = in_step(engine)
        if number not in before:
            assert number in in_step(engine), "a second long chunk went before the short prompt"
    engine.run()
    engine.assert_idle()


def test_long_prompts_get_every_other_step_however_many_short_ones_come() -> None:
    engine = long_ones_at_work()
    with_long = 0
    for number in range(10, 34):
        engine.post(submit(number, prompt(4, number), max_output=1))
        with_long += 0 in in_step(engine)
    assert with_long == 12


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        pytest.param(Band.INTERACTIVE, {9: 4}, id="for a higher band"),
        pytest.param(Band.STANDARD, {9: 4}, id="for its own band"),
        pytest.param(Band.BATCH, {0: CHUNK}, id="not for a lower one"),
    ],
)
def test_a_long_prompt_rests_for_its_own_band_and_those_above(band: Band, expected: dict[int, int]) -> None:
    engine = long_ones_at_work()
    engine.post(submit(9, prompt(4, 9), band=band))
    assert in_step(engine) == expected
