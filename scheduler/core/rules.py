"""The bounds that the core keeps.

Knows nothing of flags: `scheduler.config` fills it.
"""

from dataclasses import dataclass, field

from scheduler.core.breaker import BreakerRules
from scheduler.core.degrade import LadderRules
from services.domain.bands import Bands
from services.domain.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Times in seconds on the core's clock."""

    bands: Bands = Bands()  # noqa: RUF009 (frozen)
    """What they are called, first served first."""
    batch_wait_s: float = 0.0
    """A request that finds no window open opens one; what arrives in it is placed together."""
    max_waiting: int = 10_000
    """Requests per model that may wait in a band and the bands before it."""
    max_waiting_tokens: int = 16_000_000
    """Prompt tokens of those requests."""
    max_long_share: float = 0.9
    """Part of a worker's seats that long requests may take: a short one finds a seat beside them."""
    max_short_share: float = 0.9
    """Part of a worker's seats that short requests may take while long ones wait."""
    max_over_share: float = 0.875
    """Part of a worker's seats up to which tenants over their share are placed: others find a seat."""
    long_workers: frozenset[WorkerId] = frozenset()
    """Workers for long requests only, and the only ones for these, in models that have others too."""
    ranks_every_s: float = 1.0
    """Least time between two messages to a worker about its tenants' shares."""
    yield_after_s: float = 0.05
    """A request waits this long for a grant before others have to yield to it."""
    submit_within_s: float = 2.0
    """The worker refuses a Submit that comes later than this after its Placement."""
    match_within_s: float = 0.005
    """A head waits this long for the kvmanager's answer; then it counts as no hit."""
    match_fresh_s: float = 0.1
    """An older answer is asked for again."""
    boot_grace_s: float = 3.0
    """After a boot, workers get this long to come back before anything is refused for lack of one: longer
    than a peer may pause between two tries to connect (1.2 s, gRPC's backoff with its jitter) and then takes
    to connect."""
    worker_grace_s: float = 15.0
    """A worker that left may come back within this time; what only it can serve waits."""
    max_bypasses: int = 32
    """Requests that may pass a head that fits nowhere now; then a worker is kept free for it."""
    window: int = 16
    """Heads per model that are looked at in one decision."""
    position_every_s: float = 1.0
    """Least time between two position messages of one request."""
    position_depth: int = 1_000
    """Heads per model whose positions are kept up to date."""
    ladder: LadderRules = field(default_factory=LadderRules)
    """When bands degrade."""
    breaker: BreakerRules = field(default_factory=BreakerRules)
    """When a worker gets nothing for its faults."""
    quarantine_s: float = 900.0
    """A prompt that two workers died with is refused for so long; 0: none is."""
