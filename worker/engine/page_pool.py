"""The ledger of KV pages: nobody else allocates, and free + cached + held == total after every operation.

A page is *free* (content worthless), *held* (by one or more sequences, counted per tenant) or *cached*
(held by nobody, but its published blocks may be reused; evicted when pages are needed). A page holds 2^k
blocks, is published and reused whole, and is known by the hash of its last block, which names all before it.
Knows nothing of sequences or steps; time is told to it, and only for pages that rest unused.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

from services.domain.block_hash import BLOCK_SIZE
from services.domain.ids import BlockHash, TenantId
from services.domain.kv_layout import PAGE_SIZES
from worker.engine.kv_events import KvEvent, RemovalReason, Removed, Stored
from worker.engine.tenant_slices import TenantSlices

PageId = NewType("PageId", int)


class PageNotHeld(ValueError):
    """A page was given back by somebody who does not hold it; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The pages are held now: `shared` ones as asked for, and these new ones."""

    new_pages: list[PageId]


@dataclass(frozen=True, slots=True)
class PoolShort:
    """Not enough free and cached pages; nothing was changed."""

    missing: int


@dataclass(frozen=True, slots=True)
class OverSlice:
    """The tenant's slice does not allow it; nothing was changed."""

    missing: int


@dataclass(slots=True)
class _Page:
    holders: dict[TenantId, int]
    """Sequences that hold it, by tenant; empty when free or cached."""
    blocks: Sequence[Stored] = ()
    """What was published of it: all of its blocks or none; lives until the content is overwritten."""


class PagePool:
    """All KV pages of one worker."""

    def __init__(self, num_pages: int, *, page_size: int = BLOCK_SIZE) -> None:
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size must be one of {PAGE_SIZES}, got page_size={page_size}")
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, got {num_pages}")
        self.page_size = page_size
        self.num_total = num_pages
        self._pages = [_Page({}) for _ in range(num_pages)]
        self._free = [PageId(page) for page in reversed(range(num_pages))]
        # Front is evicted first. A sequence holds every page before those it holds, and gives its pages back
        # deepest first: so a child is always nearer to the front than its parent, and the front is a leaf.
        # With the time since when it rests: the front rests longest.
        self._cached: OrderedDict[PageId, float] = OrderedDict()
        self._by_name: dict[BlockHash, PageId] = {}
        # Two pages may begin with the same blocks and go on differently: a block is gone with the last page.
        self._num_copies: Counter[BlockHash] = Counter()
        self._held_by: dict[TenantId, int] = {}
        self.slices = TenantSlices(num_pages)
        self._now = 0.0
        self.idle_ttl_s: float | None = None
        """Seconds after which a cached page is given up that nobody has used."""
        self._events: list[KvEvent] = []
        self._changed: set[TenantId] = set()
        self.transitions: Counter[str] = Counter()
        self.allocation_failures = 0

    # -- questions ------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_total - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages that can be had without taking them from anybody: free and cached ones."""
        return len(self._free) + len(self._cached)

    def held_by(self, tenant: TenantId) -> int:
        """Return how many pages the tenant's sequences hold; one shared among them counts once."""
        return self._held_by.get(tenant, 0)

    @property
    def next_idle_end(self) -> float | None:
        """When the first cached page will have rested for too long."""
        if self.idle_ttl_s is None or not self._cached:
            return None
        return next(iter(self._cached.values())) + self.idle_ttl_s

    def match(self, names: Iterable[BlockHash]) -> list[PageId]:
        """Return the published pages of the longest prefix of `names`: the hash of each page's last block."""
        pages: list[PageId] = []
        for name in names:
            page = self._by_name.get(name)
            if page is None:
                break
            pages.append(page)
        return pages

    def can_take(
        self, tenant: TenantId, num_new: int, shared: Sequence[PageId] = ()
    ) -> PoolShort | OverSlice | None:
        """Say what stands against `take` with the same arguments; None when nothing does."""
        revived = sum(1 for page in shared if not self._pages[page].holders) if shared else 0
        missing = num_new + revived - self.num_available
        if missing > 0:
            return PoolShort(missing)
        gained = num_new
        if shared:
            gained += sum(1 for page in shared if tenant not in self._pages[page].holders)
        over = self.held_by(tenant) + gained - self.slices.bound_of(tenant)
        if over > 0 and gained > 0:
            return OverSlice(over)
        return None

    def snapshot(self) -> tuple[Stored, ...]:
        """Return every published block, parents before their children."""
        blocks = {block.hash: block for page in self._pages for block in page.blocks}
        return tuple(sorted(blocks.values(), key=lambda block: block.depth))

    # -- commands -------------------------------------------------------------------------------------------

    def take(
        self, tenant: TenantId, num_new: int, shared: Sequence[PageId] = ()
    ) -> Taken | PoolShort | OverSlice:
        """Hold the published pages `shared` (from `match`) and `num_new` empty ones, or change nothing."""
        refusal = self.can_take(tenant, num_new, shared)
        if refusal is not None:
            self.allocation_failures += 1
            return refusal
        for page in shared:
            if not self._pages[page].holders:
                del self._cached[page]
            self.transitions["reused"] += 1
            self._hold(page, tenant)
        new_pages: list[PageId] = []
        for _ in range(num_new):
            page = self._free.pop() if self._free else self._evict()
            self._hold(page, tenant)
            new_pages.append(page)
        self.transitions["allocated"] += num_new
        return Taken(new_pages)

    def release(self, tenant: TenantId, pages: Sequence[PageId]) -> None:
        """Give back one sequence's pages, named in the order of its tokens.

        Published ones stay as cached until their page is needed, the others are free at once.

        Raises:
            PageNotHeld: The tenant does not hold one of them, or one is named twice; nothing was changed.
        """
        if len(set(pages)) != len(pages):
            raise PageNotHeld("a page is named twice")
        for page in pages:
            if not 0 <= page < self.num_total or tenant not in self._pages[page].holders:
                raise PageNotHeld(f"page {page} is not held by its releaser")
        for page in reversed(pages):
            self._drop(page, tenant)

    def publish(self, page: PageId, blocks: Sequence[Stored]) -> PageId:
        """Publish a held page that the finished step has filled; return the page to use from now on.

        When another page already has these blocks, the caller's page is given back and that one is held
        instead: equal content, one copy, and whoever holds a page holds the published pages before it.
        """
        assert len(blocks) * BLOCK_SIZE == self.page_size, "a page is published whole"
        (tenant,) = self._pages[page].holders
        other = self._by_name.get(blocks[-1].hash)
        if other is None:
            self._pages[page].blocks = blocks
            self._by_name[blocks[-1].hash] = page
            for block in blocks:
                self._num_copies[block.hash] += 1
                if self._num_copies[block.hash] == 1:
                    self._events.append(block)
            return page
        if other != page:
            if not self._pages[other].holders:
                del self._cached[other]
            self.transitions["reused"] += 1
            self._hold(other, tenant)
            self._drop(page, tenant)
        return other

    def withdraw(self, pages: Sequence[PageId]) -> None:
        """Let nobody reuse what was published of held pages."""
        for page in pages:
            assert self._pages[page].holders, "only a holder withdraws"
            self._unpublish(page, RemovalReason.UNTRUSTED)

    def pass_time(self, now: float) -> bool:
        """Note the time, and free what has rested for too long, least recently used first; say if any was."""
        self._now, num_events = now, len(self._events)
        while (end := self.next_idle_end) is not None and end <= now:
            page, _ = self._cached.popitem(last=False)
            self._unpublish(page, RemovalReason.IDLE)
            self.transitions["evicted"] += 1
            self._rest(page)
        return len(self._events) > num_events

    def drain_events(self) -> list[KvEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def drain_changed_tenants(self) -> dict[TenantId, int]:
        """Return pages held now by each tenant for whom that changed since the last call."""
        changed = {tenant: self.held_by(tenant) for tenant in self._changed}
        self._changed.clear()
        return changed

    def check(self) -> None:
        """Assert the ledger's invariants; O(pages), for idle moments and tests."""
        free, cached = set(self._free), set(self._cached)
        held = {PageId(i) for i, page in enumerate(self._pages) if page.holders}
        assert len(free) == len(self._free), "a page is free twice"
        assert len(free) + len(cached) + len(held) == self.num_total, "a page is in no state, or in two"
        assert len(free | cached | held) == self.num_total, "a page is in no state, or in two"
        assert all(self._pages[page].blocks for page in cached), "a cached page without blocks"
        assert not any(self._pages[page].blocks for page in free), "a free page with blocks"
        published = {page.blocks[-1].hash: i for i, page in enumerate(self._pages) if page.blocks}
        assert published == self._by_name, "the map of names disagrees with the pages"
        copies = Counter(block.hash for page in self._pages for block in page.blocks)
        assert copies == self._num_copies, "the blocks' copies disagree with the pages"
        by_tenant = Counter(tenant for page in self._pages for tenant in page.holders)
        assert by_tenant == self._held_by, "tenants' counts disagree with the pages"

    # -- the only places that change a page's state ---------------------------------------------------------

    def _hold(self, page: PageId, tenant: TenantId) -> None:
        holders = self._pages[page].holders
        if tenant not in holders:
            self._held_by[tenant] = self._held_by.get(tenant, 0) + 1
            self._changed.add(tenant)
        holders[tenant] = holders.get(tenant, 0) + 1

    def _drop(self, page: PageId, tenant: TenantId) -> None:
        holders = self._pages[page].holders
        holders[tenant] -= 1
        if holders[tenant] > 0:
            return
        del holders[tenant]
        self._held_by[tenant] -= 1
        if not self._held_by[tenant]:
            del self._held_by[tenant]
        self._changed.add(tenant)
        if not holders:
            self._rest(page)

    def _rest(self, page: PageId) -> None:
        if self._pages[page].blocks:
            self._cached[page] = self._now
            self.transitions["cached"] += 1
        else:
            self._free.append(page)
            self.transitions["free"] += 1

    def _evict(self) -> PageId:
        page, _ = self._cached.popitem(last=False)
        self._unpublish(page, RemovalReason.SPACE)
        self.transitions["evicted"] += 1
        return page

    def _unpublish(self, page: PageId, why: RemovalReason) -> None:
        blocks, self._pages[page].blocks = self._pages[page].blocks, ()
        if blocks:
            del self._by_name[blocks[-1].hash]
        # Deepest first, as pages go: a hole is never told before what follows it.
        for block in reversed(blocks):
            self._num_copies[block.hash] -= 1
            if not self._num_copies[block.hash]:
                del self._num_copies[block.hash]
                self._events.append(Removed(block.hash, block.tenant, why))
