"""What can be set from outside.

Knows ranges; how values are read is the chassis' business.
"""

from dataclasses import dataclass
from pathlib import Path

from scheduler.core.rules import Rules
from services.chassis.config import check_range
from services.chassis.grpc import split_address
from services.chassis.logging import LEVELS


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
    max_waiting: int = 10_000
    """Requests per model that may wait in a band and the bands before it."""
    max_waiting_tokens: int = 16_000_000
    """Prompt tokens of those requests."""
    tls_cert: Path | None = None
    """Certificate chain for TLS (PEM)."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
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
        check_range("max_waiting", self.max_waiting, 1)
        check_range("max_waiting_tokens", self.max_waiting_tokens, 1)
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be given together")
        if self.kvmanager is not None:
            split_address(self.kvmanager)

    def rules(self) -> Rules:
        """Return the core's bounds."""
        return Rules(
            batch_wait_s=self.batch_wait_ms / 1000,
            match_within_s=self.match_within_ms / 1000,
            submit_within_s=self.submit_within_ms / 1000,
            max_waiting=self.max_waiting,
            max_waiting_tokens=self.max_waiting_tokens,
        )
