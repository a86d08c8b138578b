"""One behaviour for the prefix index itself and for it after a way through each copy."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvmanager.copy_writer import CopyWriter
from kvmanager.core.index_copy import IndexCopy
from kvmanager.core.prefix_index import PrefixIndex, WorkerKey
from kvmanager.stores.redis import TTL_S, WORKERS_KEY, RedisIndexCopy
from services.chassis.redis import RedisStore, connect
from services.domain.block_hash import hash_blocks
from services.domain.errors import DependencyDown
from services.domain.ids import BlockHash, Epoch, Namespace, WorkerId
from tests.fakes.index_copy_memory import MemoryIndexCopy
from tests.fakes.valkey import Valkey, eventually

W0, W1 = WorkerId("worker-0"), WorkerId("worker-1")
N0, N1 = Namespace("n0"), Namespace("n1")
A, B, C = hash_blocks(range(48), salt=b"t")


class DirectIndex:
    """The index as the manager uses it."""

    def __init__(self) -> None:
        self.index = PrefixIndex()

    def put(self, worker: WorkerId, epoch: int = 1, namespace: Namespace = N0) -> None:
        self.index.put_worker(WorkerKey(worker, Epoch(epoch), namespace))

    def add(self, worker: WorkerId, *blocks: BlockHash) -> None:
        self.index.add(worker, blocks)

    def remove(self, worker: WorkerId, *blocks: BlockHash) -> None:
        self.index.remove(worker, blocks)

    def replace(self, worker: WorkerId, *blocks: BlockHash) -> None:
        self.index.replace(worker, set(blocks))

    def drop(self, worker: WorkerId) -> None:
        self.index.drop_worker(worker)

    async def longest(
        self, hashes: list[BlockHash], namespace: Namespace | None = None
    ) -> dict[tuple[WorkerId, Epoch], int]:
        found = (await self.seen()).longest_prefixes(hashes, namespace)
        return {(match.worker, match.epoch): match.num_blocks for match in found}

    async def seen(self) -> PrefixIndex:
        return self.index


class CopiedIndex(DirectIndex):
    """Every change goes through the write-behind copy; what is asked is an index restored from it."""

    def __init__(self, copy: IndexCopy) -> None:
        super().__init__()
        self.copy = copy
        self.writer = CopyWriter(copy, self.index)

    def put(self, worker: WorkerId, epoch: int = 1, namespace: Namespace = N0) -> None:
        super().put(worker, epoch, namespace)
        self.writer.replaced(worker)

    def add(self, worker: WorkerId, *blocks: BlockHash) -> None:
        super().add(worker, *blocks)
        self.writer.changed(worker, added=blocks)

    def remove(self, worker: WorkerId, *blocks: BlockHash) -> None:
        super().remove(worker, *blocks)
        self.writer.changed(worker, removed=blocks)

    def replace(self, worker: WorkerId, *blocks: BlockHash) -> None:
        super().replace(worker, *blocks)
        self.writer.replaced(worker)

    def drop(self, worker: WorkerId) -> None:
        super().drop(worker)
        self.writer.replaced(worker)

    async def seen(self) -> PrefixIndex:
        assert await self.writer.flush()
        restored = PrefixIndex()
        for copied in await self.copy.load():
            restored.put_worker(copied.key)
            restored.replace(copied.key.worker, copied.blocks)
        return restored


@pytest.fixture
async def valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    server = Valkey(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def store(valkey: Valkey) -> AsyncIterator[RedisStore]:
    store = connect(valkey.url, limit_s=20.0)
    yield store
    await store.close()


@pytest.fixture(params=["index", "memory copy", "redis copy"])
def index(request: pytest.FixtureRequest) -> DirectIndex:
    if request.param == "index":
        return DirectIndex()
    if request.param == "memory copy":
        return CopiedIndex(MemoryIndexCopy())
    return CopiedIndex(RedisIndexCopy(request.getfixturevalue("store")))


async def test_an_unknown_prompt_matches_nowhere(index: DirectIndex) -> None:
    index.put(W0)
    assert await index.longest([A, B]) == {}
    assert await index.longest([]) == {}


async def test_each_worker_answers_for_itself(index: DirectIndex) -> None:
    index.put(W0)
    index.put(W1, epoch=7)
    index.add(W0, A)
    index.add(W1, A, B, C)
    assert await index.longest([A, B, C]) == {(W0, 1): 1, (W1, 7): 3}


async def test_a_hole_ends_the_match(index: DirectIndex) -> None:
    index.put(W0)
    index.add(W0, A, C)
    assert await index.longest([A, B, C]) == {(W0, 1): 1}
    index.remove(W0, A)
    assert await index.longest([A, B, C]) == {}


async def test_changes_are_idempotent(index: DirectIndex) -> None:
    index.put(W0)
    index.add(W0, A, B)
    index.add(W0, B)
    index.remove(W0, C)
    index.remove(W0, B)
    index.remove(W0, B)
    assert await index.longest([A, B]) == {(W0, 1): 1}


async def test_the_last_of_several_changes_to_a_block_counts(index: DirectIndex) -> None:
    index.put(W0)
    index.add(W0, A)
    await index.seen()
    index.remove(W0, A)
    index.add(W0, A)
    index.add(W0, B)
    index.remove(W0, B)
    assert await index.longest([A, B]) == {(W0, 1): 1}


async def test_a_snapshot_replaces_everything(index: DirectIndex) -> None:
    index.put(W0)
    index.add(W0, A, B)
    await index.seen()
    index.replace(W0, A, C)
    assert await index.longest([A, B]) == {(W0, 1): 1}
    assert (await index.seen()).blocks_of(W0) == {A, C}


async def test_a_dropped_worker_is_gone_and_dropping_twice_is_harmless(index: DirectIndex) -> None:
    index.put(W0)
    index.put(W1)
    index.add(W0, A)
    index.add(W1, A)
    await index.seen()
    index.drop(W0)
    index.drop(W0)
    assert await index.longest([A]) == {(W1, 1): 1}


async def test_a_new_boot_begins_empty(index: DirectIndex) -> None:
    index.put(W0, epoch=1)
    index.add(W0, A)
    await index.seen()
    index.put(W0, epoch=2)
    assert await index.longest([A]) == {}
    index.add(W0, A)
    assert await index.longest([A]) == {(W0, 2): 1}


@pytest.mark.failure("B050")
async def test_namespaces_are_kept_apart(index: DirectIndex) -> None:
    index.put(W0, namespace=N0)
    index.put(W1, namespace=N1)
    index.add(W0, A)
    index.add(W1, A, B)
    assert await index.longest([A, B], N0) == {(W0, 1): 1}
    assert await index.longest([A, B], N1) == {(W1, 1): 2}
    assert await index.longest([A, B], Namespace("n2")) == {}


@pytest.mark.failure("B050")
async def test_salts_are_kept_apart(index: DirectIndex) -> None:
    index.put(W0)
    index.add(W0, *hash_blocks(range(48), salt=b"one"))
    assert await index.longest(hash_blocks(range(48), salt=b"two")) == {}


async def test_many_blocks_pass_whole(index: DirectIndex) -> None:
    blocks = hash_blocks(range(16 * 5_000), salt=b"t")
    index.put(W0)
    index.replace(W0, *blocks[:4_500])
    await index.seen()
    index.add(W0, *blocks[4_500:])
    assert await index.longest(blocks) == {(W0, 1): 5_000}


async def test_what_a_crash_leaves_in_redis_goes_away(store: RedisStore) -> None:
    index = CopiedIndex(RedisIndexCopy(store))
    index.put(W0)
    index.add(W0, A)
    await index.seen()
    index.add(W0, B)
    await index.seen()
    keys = [key for key in await store.execute("KEYS", "*") if key != WORKERS_KEY.encode()]
    assert len(keys) == 1
    assert 0 < await store.execute("TTL", keys[0]) <= TTL_S


@pytest.mark.failure("B152")
async def test_an_outage_is_caught_up_with(valkey: Valkey) -> None:
    store = connect(valkey.url, limit_s=20.0)
    index = CopiedIndex(RedisIndexCopy(store))
    index.put(W0)
    index.add(W0, A)
    assert await index.writer.flush()
    await valkey.stop()
    index.add(W0, B)
    assert not await index.writer.flush()
    assert index.writer.is_behind_since is not None
    with pytest.raises(DependencyDown):
        await index.copy.load()
    assert index.index.longest_prefixes([A, B])[0].num_blocks == 2
    async with asyncio.timeout(20):
        await valkey.start()
        await eventually(index.writer.flush)  # The breaker lets a probe through now and then.
    assert index.writer.is_behind_since is None
    assert await index.longest([A, B]) == {(W0, 1): 2}
    await store.close()


async def test_a_server_that_forgot_is_told_everything(valkey: Valkey, store: RedisStore) -> None:
    index = CopiedIndex(RedisIndexCopy(store))
    index.put(W0)
    index.add(W0, A)
    assert await index.writer.flush()
    await store.execute("FLUSHALL")
    index.add(W0, B)
    assert await index.longest([A, B]) == {(W0, 1): 2}
