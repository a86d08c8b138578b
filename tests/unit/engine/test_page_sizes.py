"""Pages of more than one block: what is shared, told and promised, for every page size."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.block_hash import BLOCK_SIZE, hash_blocks
from services.domain.ids import BlockHash
from services.domain.kv_layout import PAGE_SIZES
from tests.fakes.engine_harness import EngineHarness, drawn, engine_config, prompt, submit
from worker.engine.commands import SnapshotKv
from worker.engine.config import EngineConfig
from worker.engine.kv_events import Stored

every_page_size = pytest.mark.parametrize("page_size", PAGE_SIZES)


def config(page_size: int, **changes: int) -> EngineConfig:
    """The same memory whatever the page size: 4,096 tokens."""
    values = {"page_size": page_size, "num_pages": 4096 // page_size, "max_context_tokens": 2048}
    return engine_config(**(values | changes))


class Told:
    """The blocks of a worker as the kvmanager knows them: from events alone."""

    def __init__(self, engine: EngineHarness) -> None:
        self._engine = engine
        self._num_read = 0
        self.blocks: set[BlockHash] = set()

    def read(self) -> None:
        for event in self._engine.kv_events[self._num_read :]:
            if isinstance(event, Stored):
                assert event.hash not in self.blocks, "a block is stored once"
                self.blocks.add(event.hash)
            else:
                self.blocks.remove(event.hash)  # type: ignore[attr-defined]
        self._num_read = len(self._engine.kv_events)

    def cached_tokens(self, ids: list[int]) -> int:
        """What the scheduler promises: blocks known, whole pages, never the last token."""
        num_tokens = 0
        for block in hash_blocks(ids, salt=b"a"):
            if block not in self.blocks:
                break
            num_tokens += BLOCK_SIZE
        page_size = self._engine.config.page_size
        return min(num_tokens, len(ids) - 1) // page_size * page_size


@every_page_size
def test_a_shared_prefix_is_reused_in_whole_pages(page_size: int) -> None:
    engine = EngineHarness(config(page_size))
    shared = prompt(1000)
    engine.post(submit(1, shared + prompt(24, 5)))
    engine.run()
    before = engine.totals["prefill"]
    engine.post(submit(2, shared + prompt(24, 6)))
    engine.run()
    whole = 1000 // page_size * page_size
    assert engine.ended[2].usage.cached_tokens == whole
    assert engine.totals["prefill"] - before == 1024 - whole
    assert engine.tokens[2, 0] == drawn(engine.executor, shared + prompt(24, 6), 0, 8)


@every_page_size
def test_blocks_are_told_when_their_page_is_full(page_size: int) -> None:
    engine = EngineHarness(config(page_size))
    engine.post(submit(1, prompt(page_size - 1), max_output=1))
    engine.run()
    assert engine.kv_events == []
    engine.post(submit(2, prompt(page_size - 1), max_output=2))
    engine.run()
    names = hash_blocks(prompt(page_size - 1) + engine.tokens[2, 0][:1], salt=b"a")
    assert [event.hash for event in engine.kv_events if isinstance(event, Stored)] == names
    assert engine.ended[2].peak_pages == 1


@every_page_size
def test_the_last_token_of_a_cached_prompt_is_computed_with_its_page(page_size: int) -> None:
    engine = EngineHarness(config(page_size))
    for handle in (1, 2):
        engine.post(submit(handle, prompt(2 * page_size)))
        engine.run()
    assert engine.ended[2].usage.cached_tokens == page_size
    assert engine.tokens[1, 0] == engine.tokens[2, 0]


@every_page_size
def test_siblings_share_the_full_pages_of_their_prompt(page_size: int) -> None:
    engine = EngineHarness(config(page_size))
    engine.post(submit(1, prompt(300), n=4, max_output=6))
    engine.run()
    assert engine.totals["prefill"] == 300 + 3 * (300 % page_size)
    engine.assert_idle()


@every_page_size
def test_a_prompt_that_parts_inside_a_page_waits_for_the_pages_before_it_only(page_size: int) -> None:
    """Two at once share 200 tokens: what both need is computed once, the page in which they part twice."""
    engine = EngineHarness(config(page_size))
    engine.post(submit(1, prompt(200) + prompt(90, 1)), submit(2, prompt(200) + prompt(90, 2)))
    engine.run()
    assert engine.totals["prefill"] == 2 * 290 - 200 // page_size * page_size


@pytest.mark.failure("B067")
@pytest.mark.parametrize("page_size", PAGE_SIZES[:3])
def test_every_length_around_a_pool_of_any_page_size_is_refused_or_finishes(page_size: int) -> None:
    limit = 2 * page_size
    for length in range(limit - 17, limit + 3):
        for max_output in (1, 17):
            engine = EngineHarness(config(page_size, num_pages=2, max_step_tokens=16, max_sequences=4))
            engine.post(submit(1, prompt(length), max_output=max_output))
            engine.run()
            assert (1 in engine.refused) == (length + max_output - 1 > limit)
            engine.assert_idle()


@pytest.mark.failure("B040")
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), page_size=st.sampled_from(PAGE_SIZES))
def test_what_is_promised_is_found_on_any_pool(seed: int, page_size: int) -> None:
    """Prompts that part anywhere, on a pool that evicts: the blocks told say exactly what a hit will give."""
    rng = random.Random(seed)
    engine = EngineHarness(config(page_size, num_pages=max(4, rng.choice([256, 1024]) // page_size)))
    told = Told(engine)
    most = engine.config.num_pages * page_size - 8
    for handle in range(20):
        parts_at = rng.randrange(min(most, 400))
        tail = rng.randrange(1, min(most - parts_at, 200) + 1)
        ids = prompt(parts_at) + prompt(tail, rng.choice([0, 1, 2]))
        promised = told.cached_tokens(ids)
        engine.post(submit(handle, ids, max_output=2))
        engine.run()
        told.read()
        assert engine.ended[handle].error is None
        assert engine.ended[handle].usage.cached_tokens == promised
    replies: list[tuple[Stored, ...]] = []
    engine.post(SnapshotKv(replies.append))
    engine.step()
    assert {block.hash for block in replies[0]} == told.blocks
    assert len(replies[0]) == len(told.blocks)
    engine.assert_idle()
