"""In which order workers give up cached blocks when they need pages. Pushed to them; they do it.

Pure. Knows orders by name; does not know pages.
"""

from dataclasses import dataclass
from enum import StrEnum


class EvictionOrder(StrEnum):
    """Which cached block goes first."""

    LRU = "lru"
    """Least recently used first, leaves before their parents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """One version of the policy; workers follow the highest version they were given."""

    version: int = 1
    order: EvictionOrder = EvictionOrder.LRU
