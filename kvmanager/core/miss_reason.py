"""Say why a prompt was not wholly cached: bounded recent history of what left the caches and what was asked.

Pure. Knows hashes, tenants and reasons; sees no prompt. It forgets: what is older than its bounds counts as
never seen.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from services.domain.ids import BlockHash, TenantId
from services.domain.miss_reason import MissReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBounds:
    """How much is remembered."""

    removed_blocks: int = 65_536
    """Blocks removed one by one."""
    gone_blocks: int = 262_144
    """Blocks of workers that are gone, in all."""
    asked_tenants: int = 64
    """Tenants whose prompts are remembered."""
    asked_blocks: int = 4_096
    """Blocks remembered of each tenant's prompts: 65,536 tokens."""


class RemovalHistory:
    """Why blocks are no longer cached, the latest reason first."""

    def __init__(self, bounds: HistoryBounds) -> None:
        self._bounds = bounds
        self._clock = 0
        self._removed: OrderedDict[BlockHash, tuple[int, MissReason]] = OrderedDict()
        self._gone: deque[tuple[int, AbstractSet[BlockHash]]] = deque()
        self._num_gone = 0

    def removed(self, blocks: Iterable[BlockHash], reason: MissReason) -> None:
        """Note that `blocks` were removed for `reason`."""
        self._clock += 1
        stamp = (self._clock, reason)
        for block in blocks:
            self._removed[block] = stamp
            self._removed.move_to_end(block)
        while len(self._removed) > self._bounds.removed_blocks:
            self._removed.popitem(last=False)

    def worker_gone(self, blocks: AbstractSet[BlockHash]) -> None:
        """Note that a worker is gone with `blocks`; the set is kept, not copied."""
        if not blocks:
            return
        self._clock += 1
        self._gone.append((self._clock, blocks))
        self._num_gone += len(blocks)
        while self._num_gone > self._bounds.gone_blocks and len(self._gone) > 1:
            self._num_gone -= len(self._gone.popleft()[1])

    def reason_of(self, block: BlockHash) -> MissReason | None:
        """Return why the block went last, None when it is not remembered."""
        stamp, reason = self._removed.get(block, (0, None))
        for gone_at, blocks in reversed(self._gone):
            if gone_at < stamp:
                break
            if block in blocks:
                return MissReason.WORKER_GONE
        return reason


class AskedHistory:
    """Beginnings of recent prompts, by tenant: which blocks were asked for and whether more followed."""

    def __init__(self, bounds: HistoryBounds) -> None:
        self._bounds = bounds
        self._tenants: OrderedDict[TenantId, OrderedDict[BlockHash, bool]] = OrderedDict()

    def note(self, tenant: TenantId, hashes: Sequence[BlockHash]) -> None:
        """Remember a prompt's blocks, as many as the bound allows, the first ones surely."""
        asked = self._tenants.setdefault(tenant, OrderedDict())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > self._bounds.asked_tenants:
            self._tenants.popitem(last=False)
        kept = hashes[: self._bounds.asked_blocks]
        last = len(kept) - 1
        for index in range(last, -1, -1):  # The beginning is the youngest, so it is forgotten last.
            block = kept[index]
            asked[block] = asked.get(block, False) or index < len(hashes) - 1
            asked.move_to_end(block)
        while len(asked) > self._bounds.asked_blocks:
            asked.popitem(last=False)

    def differs_at(self, tenant: TenantId, hashes: Sequence[BlockHash], position: int) -> bool:
        """Whether an earlier prompt shares the blocks before `position` and goes on with another one.

        A hash names everything before its block, so two prompts that share one share all before it.
        """
        asked = self._tenants.get(tenant)
        if asked is None or position == 0 or hashes[position] in asked:
            return False
        return asked.get(hashes[position - 1], False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A prompt whose cached part ends before its full blocks do."""

    tenant: TenantId
    hashes: Sequence[BlockHash]
    num_cached: int
    """Blocks that the best worker has."""
    own_salt: bool
    held_elsewhere: bool
    """Some worker has the first missing block, but not all before it."""


def explain_miss(miss: Missed, removals: RemovalHistory, asked: AskedHistory) -> MissReason:
    """Say why the block after the cached ones was not cached; ask before `asked` notes this prompt."""
    if miss.num_cached == len(miss.hashes):
        return MissReason.NONE
    if miss.held_elsewhere:
        return MissReason.ON_ANOTHER_WORKER
    removal = removals.reason_of(miss.hashes[miss.num_cached])
    if removal is not None:
        return removal
    if asked.differs_at(miss.tenant, miss.hashes, miss.num_cached):
        return MissReason.FIRST_DIFFERENCE
    if miss.own_salt and miss.num_cached == 0:
        return MissReason.OWN_SALT
    return MissReason.NEVER_SEEN
