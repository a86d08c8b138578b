"""What a request gets less of at each step."""

import pytest

from gateway.core.reductions import Reductions, capped, headers_of, reductions_of
from services.domain.degradation import Degradation, Degraded, Step
from services.domain.generation import StopParams

POLICY = Degradation(cap_output_tokens=100, cut_prompt_tokens=2000, smaller_models={"large": "small"})


@pytest.mark.parametrize(
    ("step", "reductions"),
    [
        (Step.BATCH_WAIT, Reductions()),
        (Step.CAP_OUTPUT, Reductions(cap_output_tokens=100)),
        (Step.CUT_CONTEXT, Reductions(cap_output_tokens=100, cut_prompt_tokens=2000)),
        (Step.REFUSE, Reductions(cap_output_tokens=100, cut_prompt_tokens=2000, smaller_model="small")),
    ],
)
def test_a_step_holds_those_below_it(step: Step, reductions: Reductions) -> None:
    assert reductions_of(POLICY, step, "large") == reductions


def test_only_what_a_tenant_agreed_to_is_less() -> None:
    assert reductions_of(None, Step.REFUSE, "large") == Reductions()
    assert reductions_of(Degradation(cut_prompt_tokens=7), Step.REFUSE, "large") == Reductions(
        cut_prompt_tokens=7
    )
    assert reductions_of(POLICY, Step.REFUSE, "another").smaller_model is None


@pytest.mark.parametrize(
    ("asked", "least", "told"),
    [(100, 0, None), (1000, 0, "100"), (101, 0, "100"), (1000, 300, "300"), (300, 300, None)],
)
def test_a_cap_gives_no_less_than_the_least_output_and_is_told_only_where_it_takes(
    asked: int, least: int, told: str | None
) -> None:
    stop = StopParams(max_output_tokens=asked, min_output_tokens=least)
    assert capped(stop, 100) == (None if told is None else Degraded(Step.CAP_OUTPUT, str(asked), told))


def test_a_header_holds_every_step_and_only_plain_characters() -> None:
    steps = (Degraded(Step.CAP_OUTPUT, "100", "12"), Degraded(Step.SMALLER_MODEL, "groß\n", "small"))
    assert headers_of(steps) == {"x-quire-degraded": "cap_output 12/100; smaller_model small/gro??"}
    assert headers_of(()) == {}
