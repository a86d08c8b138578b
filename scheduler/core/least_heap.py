"""A heap whose items can be moved and left out: the tenants of a queue by their counter.

Knows keys and places; knows no tenant. Every change is O(log n), and the k least are found in O(k log k)
without changing anything. `num_moves` counts places written and looked at, so that a test can see the cost.
"""

import heapq
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar


class HeapItem(Protocol):
    """Something with a key that stays the same until `moved` is called."""

    order: tuple[float, int]
    """What it is sorted by; no two are equal."""
    place: int
    """Where the heap keeps it; -1 outside. Written by the heap only."""


Item = TypeVar("Item", bound=HeapItem)


class LeastHeap(Generic[Item]):
    """Items by `order`, the least first."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self.num_moves = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        assert item.place < 0, "an item is in the heap once"
        item.place = len(self._items)
        self._items.append(item)
        self._up(item)

    def remove(self, item: Item) -> None:
        place, last = item.place, self._items.pop()
        item.place = -1
        if last is not item:
            self._items[place] = last
            last.place = place
            self.moved(last)

    def moved(self, item: Item) -> None:
        """Put an item where it belongs after its `order` has changed."""
        self._up(item)
        self._down(item)

    def least(self, most: int, within: float, skip: Collection[Item]) -> list[Item]:
        """Return up to `most` of the least that are not to be skipped, and no more than `within` above the
        first of them."""
        items, size, limit = self._items, len(self._items), float("inf")
        found: list[Item] = []
        border = [(items[0].order, 0)] if items else []
        while border and len(found) < most:
            order, place = border[0]
            if order[0] > limit:
                break
            self.num_moves += 1
            item = items[place]
            if not skip or item not in skip:
                if not found:
                    limit = order[0] + within
                found.append(item)
            child = 2 * place + 1
            if child < size:
                heapq.heapreplace(border, (items[child].order, child))
                if child + 1 < size:
                    heapq.heappush(border, (items[child + 1].order, child + 1))
            else:
                heapq.heappop(border)
        return found

    def __iter__(self) -> Iterator[Item]:
        """Yield the items, the least first. Valid until the next change."""
        items = self._items
        border = [(items[0].order, 0)] if items else []
        while border:
            _, place = heapq.heappop(border)
            self.num_moves += 1
            yield items[place]
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(items):
                    heapq.heappush(border, (items[child].order, child))

    def _up(self, item: Item) -> None:
        items, place, order = self._items, item.place, item.order
        while place:
            above = items[(place - 1) // 2]
            self.num_moves += 1
            if above.order <= order:
                break
            items[place], above.place, place = above, place, (place - 1) // 2
        items[place], item.place = item, place

    def _down(self, item: Item) -> None:
        items, place, order, size = self._items, item.place, item.order, len(self._items)
        while (child := 2 * place + 1) < size:
            if child + 1 < size and items[child + 1].order < items[child].order:
                child += 1
            below = items[child]
            self.num_moves += 1
            if order <= below.order:
                break
            items[place], below.place, place = below, place, child
        items[place], item.place = item, place
