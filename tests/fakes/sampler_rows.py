"""Rows and logits of the samplers' suites, and what they call a sampler.

Knows shapes and seeds; knows no implementation.
"""

from collections.abc import Callable

import numpy as np

from services.domain.generation import SamplingParams
from worker.engine.batch import SampleRow, StepResult

Sample = Callable[..., StepResult]

VOCAB = 2000


def row(
    position: int = 0,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    forbidden: frozenset[int] = frozenset(),
    choice: int = 0,
    **params: object,
) -> SampleRow:
    return SampleRow(
        params=SamplingParams(**params),  # type: ignore[arg-type]
        choice=choice,
        position=position,
        prompt_ids=prompt,
        output_ids=output,
        forbidden_ids=forbidden,
    )


def logits(num_rows: int, seed: int = 0, vocab: int = VOCAB, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((num_rows, vocab)) * scale).astype(np.float32)


def draws(sample: Sample, values: list[float], count: int, **params: object) -> np.ndarray:
    """Counts of each id over `count` draws from one distribution."""
    table = np.tile(np.array(values, np.float32), (count, 1))
    result = sample(table, [row(position=i, seed=9, **params) for i in range(count)])
    return np.bincount(result.token_ids, minlength=len(values))
