"""What can be set from outside.

Knows ranges; how values are read is the chassis' business.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from scheduler.core.breaker import BreakerRules
from scheduler.core.degrade import LadderRules
from scheduler.core.fair_queue import FairPolicy, as_vtc
from scheduler.core.fifo import FifoPolicy
from scheduler.core.policy import QueuePolicy
from scheduler.core.rules import Rules
from scheduler.core.share_queue import FairRules
from services.chassis.config import check_range
from services.chassis.grpc import split_address
from services.chassis.logging import LEVELS
from services.domain.bands import Bands
from services.domain.generation import Band
from services.domain.ids import WorkerId

_BAND_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")

LEAST_FLOOR = 0.001
"""Of a band below the first: with none at all it could wait for ever."""


class Policy(StrEnum):
    """Who is next."""

    FAIR = "fair"
    VTC = "vtc"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandConfig:
    """One band."""

    name: str
    """1 to 64 lower-case letters, digits, `_`, `.` or `-`."""
    floor: float = 0.0
    """Part of the service that it gets while it waits, however busy the bands before it are; 0.001 to 0.99,
    in the first band, which is before all others, from 0."""
    target_ms: int = 0
    """Longest that its oldest request should wait before bands degrade; 0 to 3600000, 0 is never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Run the scheduler: the one queue in front of all workers."""

    name: str = "scheduler"
    """Name of this process towards its peers."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 50052
    """gRPC port; 0 takes any free one."""
    probe_port: int = 9101
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""
    kvmanager: str | None = None
    """host:port of the kvmanager; without one placement goes by load alone."""
    redis_url: str | None = None
    """Where quarantined prompts are kept, by digest; without one a restart forgets them."""
    batch_wait_ms: int = 0
    """Milliseconds in which arrivals are gathered to be placed together; 0 to 10000."""
    match_within_ms: int = 5
    """Milliseconds that a request at the head waits for the kvmanager's answer; 1 to 1000."""
    submit_within_ms: int = 2000
    """Milliseconds that a gateway has to use a place; then it goes to another request. 50 to 60000."""
    policy: Policy = Policy.FAIR
    """Order of the queue: fair, vtc (fair, but blind to cached prefixes) or fifo."""
    fair_quantum: int = 4096
    """Tokens of service that a cached prefix may bring a tenant ahead of the least served; 0 to 10000000."""
    bands: tuple[BandConfig, ...] = (
        BandConfig(name="interactive"),
        BandConfig(name="standard", floor=0.1),
        BandConfig(name="batch", floor=0.05),
    )
    """Bands, the first served first: 1 to 8 tables [[scheduler.bands]] of the configuration file."""
    degrade_after_ms: int = 5000
    """Milliseconds that the wait must be too long before each step; 0 to 600000."""
    recover_after_ms: int = 30_000
    """Milliseconds that it must be at most half of that before each step back; 0 to 600000."""
    max_long_share: float = 0.9
    """Part of a worker's seats that long requests may take; 0.05 to 1."""
    max_short_share: float = 0.9
    """Part of a worker's seats that short requests may take while long ones wait; 0.05 to 1."""
    long_workers: tuple[str, ...] = ()
    """Names of workers that serve all long requests and nothing else. A model of whose workers
    none is named (or all are) shares them between short and long ones."""
    breaker_failures: int = 8
    """Failures among a worker's last 20 outcomes, half of them at least, at which it gets nothing for a time;
    0 turns this off for errors, deaths and stalls. 0 to 20."""
    breaker_stall_s: float = 10.0
    """Seconds without a finished step, with work to do, at which a worker gets nothing more. 1 to 3600."""
    quarantine_s: float = 900.0
    """Seconds for which a prompt is refused that two workers died with; 0 never. 0 to 86400."""
    max_waiting: int = 10_000
    """Requests per model that may wait in a band and the bands before it."""
    max_waiting_tokens: int = 16_000_000
    """Prompt tokens of those requests."""
    insecure: bool = False
    """Listen beyond loopback without credentials."""
    trace: str = "none"
    """Where spans go: none, otlp or file:PATH."""
    log_level: str = "info"
    """debug, info, warning or error."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535)
        check_range("probe_port", self.probe_port, 0, 65535)
        check_range("batch_wait_ms", self.batch_wait_ms, 0, 10_000)
        check_range("match_within_ms", self.match_within_ms, 1, 1000)
        check_range("submit_within_ms", self.submit_within_ms, 50, 60_000)
        check_range("fair_quantum", self.fair_quantum, 0, 10_000_000)
        self._check_bands()
        check_range("degrade_after_ms", self.degrade_after_ms, 0, 600_000)
        check_range("recover_after_ms", self.recover_after_ms, 0, 600_000)
        check_range("max_long_share", self.max_long_share, 0.05, 1)
        check_range("max_short_share", self.max_short_share, 0.05, 1)
        check_range("breaker_failures", self.breaker_failures, 0, 20)
        check_range("breaker_stall_s", self.breaker_stall_s, 1, 3600)
        check_range("quarantine_s", self.quarantine_s, 0, 86_400)
        check_range("max_waiting", self.max_waiting, 1)
        check_range("max_waiting_tokens", self.max_waiting_tokens, 1)
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level}")
        if self.kvmanager is not None:
            split_address(self.kvmanager)

    def new_policy(self) -> QueuePolicy:
        """Return an empty queue."""
        if self.policy is Policy.FIFO:
            return FifoPolicy()
        rules = self.fair_rules()
        return FairPolicy(rules if self.policy is Policy.FAIR else as_vtc(rules))

    def fair_rules(self) -> FairRules:
        """Return how tenants and bands share."""
        return FairRules(
            quantum=self.fair_quantum,
            floors={band: one.floor for band, one in self._ranked()},
            num_bands=len(self.bands),
        )

    def rules(self) -> Rules:
        """Return the core's bounds."""
        return Rules(
            bands=Bands(tuple(one.name for one in self.bands)),
            batch_wait_s=self.batch_wait_ms / 1000,
            match_within_s=self.match_within_ms / 1000,
            submit_within_s=self.submit_within_ms / 1000,
            max_long_share=self.max_long_share,
            max_short_share=self.max_short_share,
            long_workers=frozenset(map(WorkerId, self.long_workers)),
            max_waiting=self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
            ladder=self._ladder(),
            breaker=BreakerRules(min_failures=self.breaker_failures, stall_s=self.breaker_stall_s),
            quarantine_s=self.quarantine_s,
        )

    def _check_bands(self) -> None:
        for rank, one in self._ranked():
            if not _BAND_NAME.fullmatch(one.name):
                raise ValueError(f"bands.name must be 1 to 64 of a-z, 0-9, _, . and -, got {one.name!r}")
            check_range(f"bands.{one.name}.floor", one.floor, LEAST_FLOOR if rank > 1 else 0, 0.99)
            check_range(f"bands.{one.name}.target_ms", one.target_ms, 0, 3_600_000)
        Bands(tuple(one.name for one in self.bands))
        floors = sum(one.floor for one in self.bands)
        if floors >= 1:
            raise ValueError(f"the floors of all bands must sum to less than 1, got {floors:g}")

    def _ranked(self) -> list[tuple[Band, BandConfig]]:
        return [(Band(rank), one) for rank, one in enumerate(self.bands, start=1)]

    def _ladder(self) -> LadderRules:
        return LadderRules(
            targets_s={band: one.target_ms / 1000 for band, one in self._ranked() if one.target_ms},
            rise_after_s=self.degrade_after_ms / 1000,
            fall_after_s=self.recover_after_ms / 1000,
        )
