"""Seeds that the gateway draws where a caller gave none."""

import asyncio
from collections import Counter

import pytest

from tests.fakes.gateway_rig import gateway_rig, generate
from worker.engine.counter_random import uniform


@pytest.mark.failure("B085")
async def test_seeds_are_fresh_where_none_is_given_and_their_draws_are_even_on_each_worker() -> None:
    """Two hundred calls over two workers: no seed twice, and first draws spread as chance would have it."""
    async with gateway_rig(num_workers=2) as rig:
        answers = await asyncio.gather(*(generate(rig) for _ in range(100)))
        rig.scheduler.workers.reverse()
        answers += await asyncio.gather(*(generate(rig) for _ in range(100)))
        told = {answer.of("started")[0].seed for answer in answers}
        of_workers = [[submit.sampling.seed for submit in worker.submits] for worker in rig.workers]
    assert len(told) == 200
    assert told == set().union(*of_workers)
    for seeds in [*of_workers, [*told]]:
        assert len(seeds) >= 100
        tenths = Counter(int(10 * uniform(seed, 0, 0)) for seed in seeds)
        expected = len(seeds) / 10
        chi_square = sum((tenths[tenth] - expected) ** 2 / expected for tenth in range(10))
        assert chi_square < 64, "by chance once in four thousand million runs"
