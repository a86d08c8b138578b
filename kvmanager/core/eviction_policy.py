"""In which order workers give up cached blocks, and when at the latest. Pushed to them; they do it.

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
    """One version of the policy; workers follow the last one they were given, and say so."""

    version: int = 1
    order: EvictionOrder = EvictionOrder.LRU
    idle_ttl_s: float | None = None
    """Seconds after which a cached block goes that nobody has used; None: only when its page is needed."""
