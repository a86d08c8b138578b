"""What waits of one tenant in one queue, by class, and what it has had, in both together.

Knows no other tenant, no rule and no time; its queue changes it.
"""

from typing import TYPE_CHECKING

from scheduler.core.arrival_queue import ArrivalQueue
from scheduler.core.ranked_list import Entry
from services.domain.ids import TenantId

if TYPE_CHECKING:
    from scheduler.core.share_queue import ShareQueue

SHORT, LONG = range(2)
"""Places of the classes in what is kept by class."""


class Line:
    """What waits of one tenant and one class."""

    __slots__ = ("entry", "number", "order", "passed", "share", "waiting")

    def __init__(self, share: "TenantShare", number: int) -> None:
        self.share = share
        self.number = number
        self.order = (0.0, number)
        self.entry: Entry | None = None
        """None while nothing waits."""
        self.waiting = ArrivalQueue()
        self.passed = 0
        """Times that a longer prefix of its class went before its head."""


class TenantShare:
    """One tenant in one queue."""

    __slots__ = ("counter", "lines", "live", "long_passed", "queue", "tenant", "weight")

    def __init__(self, tenant: TenantId, number: int, queue: "ShareQueue") -> None:
        self.tenant = tenant
        self.queue = queue
        self.weight = 1.0
        self.counter = 0.0
        """Weighted tokens of service, of both classes."""
        self.lines = (Line(self, 2 * number), Line(self, 2 * number + 1))
        """By class."""
        self.live = 0
        """Requests placed that have not ended."""
        self.long_passed = 0
        """Times that one of its short requests went while a long one waited, since a long one went."""

    @property
    def is_waiting(self) -> bool:
        return self.lines[SHORT].entry is not None or self.lines[LONG].entry is not None

    @property
    def num_waiting(self) -> int:
        short, long = self.lines
        return len(short.waiting) + len(long.waiting)

    @property
    def num_tokens_waiting(self) -> int:
        """Of the prompts."""
        return sum(line.waiting.num_tokens for line in self.lines)
