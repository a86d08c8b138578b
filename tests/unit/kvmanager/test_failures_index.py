"""Known failures of prefix indexes: a lookup that holds what it found."""

import pytest

from services.domain.block_hash import hash_blocks
from services.domain.ids import BlockHash
from tests.fakes.kv_fleet import W0, Fleet

NUM_PREFIXES = 2000


def block(seed: int) -> BlockHash:
    return hash_blocks([seed] * 16, salt=b"t")[0]


@pytest.mark.failure("B014")
def test_lookups_that_come_to_nothing_keep_nothing_alive() -> None:
    """Nobody uses what these find, and then the worker evicts all of it."""
    fleet = Fleet()
    link = fleet.connect()
    blocks = [block(seed) for seed in range(NUM_PREFIXES)]
    fleet.snapshot(link, *blocks)
    version = fleet.manager.index.version
    for one in blocks:
        assert fleet.ask(one, block(2**32 - 1)).num_cached == 1
    assert fleet.manager.index.version == version
    assert fleet.manager.index.blocks_of(W0) == set(blocks)
    for seq, one in enumerate(blocks, start=1):
        fleet.change(link, seq, removed=[one], stored=[])
    assert fleet.manager.index.blocks_of(W0) == set()
    assert fleet.ask(blocks[0]).num_cached == 0
    assert fleet.metric("quire_prefix_index_gaps_total") == 0
