"""Requests of every kind that a step can have rows of."""

from typing import Any

import numpy as np

from services.domain.generation import SamplingParams
from tests.fakes.engine_harness import prompt, submit


def mixed_request(handle: int, rng: np.random.Generator, *, one_penalty_in: int) -> Any:
    """Return one with a prompt and an answer of any length; some have penalties, scores and choices."""
    sampling = SamplingParams(
        seed=handle,
        repetition_penalty=1.2 if handle % one_penalty_in == 0 else 1.0,
        num_logprobs=5 if handle % 4 == 0 else None,
    )
    ids = [token % 200 for token in prompt(int(rng.integers(1, 40)), handle)]
    return submit(
        handle,
        ids,
        max_output=int(rng.integers(1, 12)),
        n=1 + handle % 2,
        sampling=sampling,
        num_prompt_logprobs=2 if handle % 5 == 0 else None,
    )
