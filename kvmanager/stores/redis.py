"""A copy of the prefix index in Redis: one SET of 16-byte block hashes per worker, epoch and namespace.

Knows keys and commands; does not know when to write. Every SET has a time to live, so that what a crash
leaves behind goes away by itself. A write that is cut short leaves a part of the truth, never more than it.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice

from kvmanager.core.index_copy import CopiedWorker
from kvmanager.core.prefix_index import WorkerKey
from services.chassis.redis import RedisStore
from services.domain.ids import BlockHash, Epoch, Namespace, WorkerId

WORKERS_KEY = "quire:index:workers"
"""HASH: worker -> the boot whose blocks are copied, as `epoch namespace`."""
TTL_S = 600
"""Seconds a worker's blocks live without being written or renewed."""
CHUNK_BLOCKS = 2_000
"""Blocks in one command."""
LIMIT_S = 2.0
"""Limit of one command: nothing waits for the copy, and large ones take their time."""


class RedisIndexCopy:
    """See `IndexCopy`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def load(self) -> list[CopiedWorker]:
        fields = await self._store.execute("HGETALL", WORKERS_KEY, limit_s=LIMIT_S)
        copied = []
        for worker, boot in _pairs(fields):
            key = _key_of(worker, boot)
            if key is not None:
                copied.append(CopiedWorker(key, await self._members(_blocks_key(key))))
        return copied

    async def replace(self, key: WorkerKey, blocks: AbstractSet[BlockHash]) -> None:
        await self.forget(key.worker)
        await self._store.execute("HSET", WORKERS_KEY, key.worker, _boot(key), limit_s=LIMIT_S)
        remaining = iter(tuple(blocks))
        while chunk := list(islice(remaining, CHUNK_BLOCKS)):
            await self._store.pipeline(
                [("SADD", _blocks_key(key), *chunk), ("EXPIRE", _blocks_key(key), TTL_S)], limit_s=LIMIT_S
            )

    async def change(
        self, key: WorkerKey, added: Collection[BlockHash], removed: Collection[BlockHash]
    ) -> bool:
        if await self._store.execute("HGET", WORKERS_KEY, key.worker, limit_s=LIMIT_S) != _boot(key):
            return False
        for command, blocks in (("SREM", removed), ("SADD", added)):
            remaining = iter(blocks)
            while chunk := list(islice(remaining, CHUNK_BLOCKS)):
                await self._store.execute(command, _blocks_key(key), *chunk, limit_s=LIMIT_S)
        await self._store.execute("EXPIRE", _blocks_key(key), TTL_S, limit_s=LIMIT_S)
        return True

    async def forget(self, worker: WorkerId) -> None:
        boot = await self._store.execute("HGET", WORKERS_KEY, worker, limit_s=LIMIT_S)
        key = None if boot is None else _key_of(worker.encode(), boot)
        if key is not None:
            await self._store.execute("UNLINK", _blocks_key(key), limit_s=LIMIT_S)
        await self._store.execute("HDEL", WORKERS_KEY, worker, limit_s=LIMIT_S)

    async def _members(self, key: str) -> set[BlockHash]:
        """Read a SET in parts, so that Redis answers others in between."""
        blocks: set[BlockHash] = set()
        cursor: bytes | int = 0
        while True:
            cursor, members = await self._store.execute(
                "SSCAN", key, cursor, "COUNT", CHUNK_BLOCKS, limit_s=LIMIT_S
            )
            blocks.update(members)
            if int(cursor) == 0:
                return blocks


def _blocks_key(key: WorkerKey) -> str:
    return f"quire:index:{{{key.worker}}}:{key.epoch}:{key.namespace}"


def _boot(key: WorkerKey) -> bytes:
    return f"{key.epoch} {key.namespace}".encode()


def _key_of(worker: bytes, boot: bytes) -> WorkerKey | None:
    """Read an entry of the HASH; None for one that is not ours."""
    epoch, _, namespace = boot.decode("utf-8", "replace").partition(" ")
    if not epoch.isdigit():
        return None
    return WorkerKey(WorkerId(worker.decode("utf-8", "replace")), Epoch(int(epoch)), Namespace(namespace))


def _pairs(fields: dict[bytes, bytes] | list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Read the reply to HGETALL: a map or a flat list, as the protocol version has it."""
    if isinstance(fields, dict):
        return iter(fields.items())
    return zip(fields[::2], fields[1::2], strict=True)
