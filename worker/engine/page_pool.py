"""The ledger of KV pages: nobody else allocates, and free + cached + held == total after every operation.

A page is *free* (content worthless), *held* (by one or more sequences, counted per tenant) or *cached*
(held by nobody, but its published block may be reused; evicted when pages are needed). A page holds one
block. Knows nothing of sequences, steps or time: "recently used" is the order of its own operations.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType

from services.domain.block_hash import BLOCK_SIZE
from services.domain.ids import BlockHash, TenantId
from worker.engine.kv_events import KvEvent, RemovalReason, Removed, Stored

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
    block: Stored | None = None
    """What was published of it; lives until the content is overwritten."""


class PagePool:
    """All KV pages of one worker."""

    def __init__(self, num_pages: int, *, page_size: int = BLOCK_SIZE) -> None:
        if page_size != BLOCK_SIZE:
            raise ValueError(f"a page holds one block of {BLOCK_SIZE} tokens, got page_size={page_size}")
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, got {num_pages}")
        self.page_size = page_size
        self.num_total = num_pages
        self._pages = [_Page({}) for _ in range(num_pages)]
        self._free = [PageId(page) for page in reversed(range(num_pages))]
        # Front is evicted first. A sequence holds every block before those it holds, and gives its pages back
        # deepest first: so a child is always nearer to the front than its parent, and the front is a leaf.
        self._cached: OrderedDict[PageId, None] = OrderedDict()
        self._by_hash: dict[BlockHash, PageId] = {}
        self._held_by: dict[TenantId, int] = {}
        self._slices: Mapping[TenantId, int] = {}
        self._default_slice: int | None = None
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

    def slice_of(self, tenant: TenantId) -> int:
        """Return the most pages the tenant may hold."""
        limit = self._slices.get(tenant, self._default_slice)
        return self.num_total if limit is None else min(limit, self.num_total)

    def match(self, hashes: Iterable[BlockHash]) -> list[PageId]:
        """Return the pages of the longest prefix of `hashes` whose blocks are published."""
        pages: list[PageId] = []
        for block_hash in hashes:
            page = self._by_hash.get(block_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def can_take(
        self, tenant: TenantId, num_new: int, shared: Sequence[PageId] = ()
    ) -> PoolShort | OverSlice | None:
        """Say what stands against `take` with the same arguments; None when nothing does."""
        revived = sum(1 for page in shared if not self._pages[page].holders)
        missing = num_new + revived - self.num_available
        if missing > 0:
            return PoolShort(missing)
        gained = num_new + sum(1 for page in shared if tenant not in self._pages[page].holders)
        over = self.held_by(tenant) + gained - self.slice_of(tenant)
        if over > 0 and gained > 0:
            return OverSlice(over)
        return None

    def snapshot(self) -> tuple[Stored, ...]:
        """Return every published block, parents before their children."""
        blocks = [page.block for page in self._pages if page.block is not None]
        return tuple(sorted(blocks, key=lambda block: block.depth))

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

    def publish(self, page: PageId, block: Stored) -> PageId:
        """Publish what the finished step completed in a held page; return the page to use from now on.

        When another page already has this block, the caller's page is given back and that one is held
        instead: equal content, one copy, and whoever holds a block holds the published blocks before it.
        """
        (tenant,) = self._pages[page].holders
        other = self._by_hash.get(block.hash)
        if other is None:
            self._pages[page].block = block
            self._by_hash[block.hash] = page
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

    def set_slices(self, max_pages: Mapping[TenantId, int], default_max: int | None) -> None:
        """Replace the slices. Tenants above their new one keep what they hold and get nothing more."""
        self._slices = dict(max_pages)
        self._default_slice = default_max

    def drain_events(self) -> list[KvEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def drain_changed_tenants(self) -> dict[TenantId, int]:
        """Return pages held now by each tenant for whom that changed since the last call."""
        changed = {tenant: self.held_by(tenant) for tenant in self._changed}
        self._changed.clear()
        return changed

    def wants_more(self) -> list[TenantId]:
        """Name the tenants that hold 80 % or more of a slice smaller than the pool (8 of 10 pages)."""
        return [
            tenant
            for tenant, held in self._held_by.items()
            if self.slice_of(tenant) < self.num_total and held * 5 >= self.slice_of(tenant) * 4
        ]

    def check(self) -> None:
        """Assert the ledger's invariants; O(pages), for idle moments and tests."""
        free, cached = set(self._free), set(self._cached)
        held = {PageId(i) for i, page in enumerate(self._pages) if page.holders}
        assert len(free) == len(self._free), "a page is free twice"
        assert len(free) + len(cached) + len(held) == self.num_total, "a page is in no state, or in two"
        assert len(free | cached | held) == self.num_total, "a page is in no state, or in two"
        assert all(self._pages[page].block is not None for page in cached), "a cached page without a block"
        assert all(self._pages[page].block is None for page in free), "a free page with a block"
        published = {page.block.hash: i for i, page in enumerate(self._pages) if page.block is not None}
        assert published == self._by_hash, "the hash map disagrees with the pages"
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
        if self._pages[page].block is None:
            self._free.append(page)
            self.transitions["free"] += 1
        else:
            self._cached[page] = None
            self.transitions["cached"] += 1

    def _evict(self) -> PageId:
        page, _ = self._cached.popitem(last=False)
        self._unpublish(page, RemovalReason.SPACE)
        self.transitions["evicted"] += 1
        return page

    def _unpublish(self, page: PageId, why: RemovalReason) -> None:
        block = self._pages[page].block
        if block is not None:
            del self._by_hash[block.hash]
            self._pages[page].block = None
            self._events.append(Removed(block.hash, block.tenant, why))
