"""Items in the order of keys that change: the tenants of a queue by their counter.

A list of short sorted lists: where an item belongs is found by halving, twice, and no more than a short list
is shifted to put it there. The k least are a slice. Against a heap that costs a shift in the memory of one
short list, and saves the walk that a heap needs for the k least, which every decision asks for. Knows keys;
knows no tenant. `num_moves` counts items put in, taken out and looked at, so that a test can see the cost.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

MOST = 256
"""Items in one short list; one that grows longer is halved."""

Entry = tuple[float, int, Any]
"""Key and item; no two keys are equal, so items are never compared."""


class RankedItem(Protocol):
    """Something with a key that stays the same until `moved` is called."""

    order: tuple[float, int]
    """What it is sorted by; no two are equal."""
    entry: Entry | None
    """As the list holds it; None outside. Written by the list only."""


Item = TypeVar("Item", bound=RankedItem)


class RankedList(Generic[Item]):
    """Items by `order`, the least first."""

    def __init__(self) -> None:
        self._parts: list[list[Entry]] = []
        """None is empty; all of one are before all of the next."""
        self._lasts: list[Entry] = []
        """The last of each part."""
        self._len = 0
        self.num_moves = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Item]:
        """Yield the items, the least first. Valid until the next change."""
        for part in self._parts:
            for entry in part:
                self.num_moves += 1
                yield entry[2]

    def add(self, item: Item) -> None:
        assert item.entry is None, "an item is in the list once"
        self._put(item)

    def remove(self, item: Item) -> None:
        self._take(item)
        item.entry = None

    def moved(self, item: Item) -> None:
        """Put an item where it belongs after its `order` has changed."""
        self._take(item)
        self._put(item)

    def least(self, most: int, within: float, skip: Collection[Item]) -> list[Item]:
        """Return up to `most` of the least that are not to be skipped, and no more than `within` above the
        first of them."""
        found: list[Entry] = []
        for part in self._parts:
            rows = [entry for entry in part if entry[2] not in skip] if skip else part
            found += rows[: most - len(found)]
            self.num_moves += min(len(part), most)
            if len(found) == most or (found and part[-1][0] > found[0][0] + within):
                break
        if found and found[-1][0] > (limit := found[0][0] + within):
            found = found[: bisect_right(found, limit, key=itemgetter(0))]
        return [entry[2] for entry in found]

    def _put(self, item: Item) -> None:
        entry = item.entry = (*item.order, item)
        self.num_moves += 1
        self._len += 1
        parts, lasts = self._parts, self._lasts
        if not parts:
            parts.append([entry])
            lasts.append(entry)
            return
        number = min(bisect_left(lasts, entry), len(parts) - 1)
        part = parts[number]
        insort(part, entry)
        lasts[number] = part[-1]
        if len(part) > MOST:
            half = len(part) // 2
            parts[number : number + 1] = [part[:half], part[half:]]
            lasts[number : number + 1] = [part[half - 1], part[-1]]

    def _take(self, item: Item) -> None:
        assert item.entry is not None, "it is in the list"
        self.num_moves += 1
        self._len -= 1
        number = bisect_left(self._lasts, item.entry)
        part = self._parts[number]
        del part[bisect_left(part, item.entry)]
        if part:
            self._lasts[number] = part[-1]
        else:
            del self._parts[number], self._lasts[number]
