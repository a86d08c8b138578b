"""A worker that keeps to slices as the engine does, and the two directions of its stream."""

from dataclasses import dataclass, field

from services.domain.ids import TenantId, WorkerId
from services.domain.slices import NO_SLICES, SliceInForce, SlicesInForce

T = TenantId("t")


@dataclass
class SliceWorker:
    """One boot. Holds what it likes inside its bound; what its slice let start runs to its end."""

    name: WorkerId
    total_pages: int
    version: int = 0
    limit: int = 0
    bound: int = 0
    running: list[int] = field(default_factory=list)
    """Worst case of each running sequence, in pages."""
    waiting: list[tuple[int, float]] = field(default_factory=list)
    """Worst case of each waiting request, and since when it waits."""
    posted: list[tuple[int, int]] = field(default_factory=list)
    """Slices read from a stream and not applied: they outlive it."""
    connected: bool = False
    coming: list[tuple[int, int]] = field(default_factory=list)
    """On their way to the worker, in order."""
    going: list[SlicesInForce] = field(default_factory=list)
    """On their way from it."""

    @property
    def may_hold(self) -> int:
        """Pages that it can come to hold whatever is delivered."""
        return max(self.bound, *(limit for _, limit in (*self.posted, *self.coming)), 0)

    def state(self, now: float, *, posted: bool = False) -> SlicesInForce:
        """Return its word; in a hello what was read and not applied counts as well."""
        if not self.version and not self.posted:
            return NO_SLICES
        most = max((limit for _, limit in self.posted), default=0) if posted else 0
        worst, since = next(iter(self.waiting), (0, now))
        one = SliceInForce(
            max_pages=max(self.limit, most),
            bound=max(self.bound, most),
            held=min(self.bound, sum(self.running)),
            needs=worst,
            waited_s=now - since,
        )
        return SlicesInForce(version=self.version, tenants={T: one})

    def read(self) -> None:
        self.posted.append(self.coming.pop(0))

    def apply(self) -> None:
        self.version, self.limit = self.posted.pop(0)
        self._keep_to()

    def _keep_to(self) -> None:
        self.bound = max(self.limit, min(self.bound, sum(self.running)))

    def start(self) -> bool:
        """Start the first waiting request if its slice lets it finish."""
        if not self.waiting or self.bound > self.limit or self.waiting[0][0] > self.limit:
            return False
        self.running.append(self.waiting.pop(0)[0])
        return True

    def end(self, index: int) -> None:
        del self.running[index]
        self._keep_to()

    def say(self, now: float) -> None:
        if self.connected:
            self.going.append(self.state(now))

    def cut_off(self) -> None:
        self.connected = False
        self.coming.clear()
        self.going.clear()
