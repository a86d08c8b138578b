"""What can be set from outside.

Knows ranges; how values are read is the chassis' business.
"""

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
from services.domain.generation import Band
from services.domain.ids import WorkerId


class Policy(StrEnum):
    """Who is next."""

    FAIR = "fair"
    VTC = "vtc"
    FIFO = "fifo"


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
    standard_floor: float = 0.1
    """Part of the service that the standard band gets however busy the interactive one is; 0 to 0.5."""
    batch_floor: float = 0.05
    """The same for the batch band; 0 to 0.5."""
    interactive_target_ms: int = 0
    """Longest that an interactive request should wait before bands degrade; 0 to 3600000, 0 is never."""
    standard_target_ms: int = 0
    """The same for the standard band and those below it."""
    batch_target_ms: int = 0
    """The same for the batch band."""
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
        check_range("standard_floor", self.standard_floor, 0, 0.5)
        check_range("batch_floor", self.batch_floor, 0, 0.5)
        for name in ("interactive_target_ms", "standard_target_ms", "batch_target_ms"):
            check_range(name, getattr(self, name), 0, 3_600_000)
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
        rules = FairRules(
            quantum=self.fair_quantum,
            floors={Band.STANDARD: self.standard_floor, Band.BATCH: self.batch_floor},
        )
        return FairPolicy(rules if self.policy is Policy.FAIR else as_vtc(rules))

    def rules(self) -> Rules:
        """Return the core's bounds."""
        return Rules(
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

    def _ladder(self) -> LadderRules:
        targets_ms = {
            Band.INTERACTIVE: self.interactive_target_ms,
            Band.STANDARD: self.standard_target_ms,
            Band.BATCH: self.batch_target_ms,
        }
        return LadderRules(
            targets_s={band: target_ms / 1000 for band, target_ms in targets_ms.items() if target_ms},
            rise_after_s=self.degrade_after_ms / 1000,
            fall_after_s=self.recover_after_ms / 1000,
        )
