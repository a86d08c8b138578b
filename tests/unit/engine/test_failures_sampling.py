"""Known failures of samplers: a parameter that is taken and then dropped."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from services.domain.generation import SamplingParams
from worker.engine.batch import SampleRow, StepResult
from worker.engine.sampler import sample

LOGITS = np.array([2.0, 1.5, 1.0, 0.5, -6.0], np.float32)
EXTREMES: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.2,
    "top_k": 1,
    "min_p": 1.0,
    "repetition_penalty": 10.0,
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "logit_bias": {4: 100.0},
    "seed": 2**64 - 1,
    "num_logprobs": 3,
}


def give(**params: Any) -> tuple[list[int], StepResult]:
    """Draw 200 positions of one choice whose output so far is the likeliest id, twice."""
    rows = [
        SampleRow(params=SamplingParams(**params), choice=0, position=i, prompt_ids=(0, 1), output_ids=(0, 0))
        for i in range(200)
    ]
    result = sample(np.tile(LOGITS, (200, 1)), rows)
    return result.token_ids.tolist(), result


@pytest.mark.failure("B095")
def test_every_sampling_parameter_has_an_effect_that_can_be_seen() -> None:
    assert EXTREMES.keys() == {field.name for field in dataclasses.fields(SamplingParams)}
    plain, result = give()
    assert result.top[0] is None
    for name, extreme in EXTREMES.items():
        drawn, result = give(**{name: extreme})
        if name == "num_logprobs":
            assert [len(top.token_ids) for top in result.top if top] == [3] * 200
            assert drawn == plain, "being told more changes nothing"
        else:
            assert drawn != plain, name


@pytest.mark.failure("B095")
@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p"])
def test_the_narrowest_filter_leaves_the_likeliest_only(name: str) -> None:
    assert set(give(**{name: EXTREMES[name]})[0]) == {0}
