"""What can be set from outside.

Knows ranges and the tenants' caps; how values are read is the chassis' business. Of the file's `[[tenants]]`
only `kv_pages` counts here, a parent's without its children's: the rest is the gateway's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvmanager.core.eviction_policy import EvictionOrder
from services.chassis.config import check_range, load
from services.chassis.config_tenants import load_tenants
from services.chassis.logging import LEVELS
from services.domain.ids import TenantId
from services.domain.tenant_book import TenantBook

_EXAMPLES = """examples:
  quire kvmanager --redis-url redis://10.0.0.7:6379/0 --expect-workers 4
  quire kvmanager --config quire.toml --tenant-cap acme=2000
  quire kvmanager --port 50153 --probe-port 9202 --idle-ttl-s 600
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvManagerConfig:
    """Run the kvmanager: the prefix index of the fleet and the tenants' slices of KV pages."""

    name: str = "kvmanager"
    """Name of this process towards its peers."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 50053
    """gRPC port; 0 takes any free one."""
    probe_port: int = 9102
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""
    redis_url: str | None = None
    """redis://host:port/db for the copy of the index; without one it does not outlive this process."""
    tenant_cap: tuple[str, ...] = ()
    """TENANT=PAGES: most KV pages of a tenant over all workers; goes before all others."""
    expect_workers: int = 1
    """Workers that will come: as they start each gets an equal slice of a tenant's cap. One that comes beside
    them gets its share once the others have given it up."""
    eviction_order: EvictionOrder = EvictionOrder.LRU
    """In which order workers give up cached blocks."""
    idle_ttl_s: float | None = None
    """Seconds after which workers give up a cached block that nobody has used; without it only when its page
    is needed."""
    insecure: bool = False
    """Listen beyond loopback without credentials."""
    trace: str = "none"
    """Where spans go: none, otlp or file:PATH."""
    log_level: str = "info"
    """debug, info, warning or error."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535)
        check_range("probe_port", self.probe_port, 0, 65535)
        check_range("expect_workers", self.expect_workers, 1, 10_000)
        if self.idle_ttl_s is not None:
            check_range("idle_ttl_s", self.idle_ttl_s, 1.0, 31_536_000.0)
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level}")
        for text in self.tenant_cap:
            _cap_of_flag(text)


@dataclass(frozen=True, slots=True)
class CapSources:
    """Where the caps of tenants, in pages, come from."""

    file: Mapping[TenantId, int]
    flags: Mapping[TenantId, int]

    def with_published(self, published: Mapping[TenantId, int]) -> dict[TenantId, int]:
        """Return the caps that hold beside those that the gateways' admin door has published."""
        return {**self.file, **published, **self.flags}


def load_config(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[KvManagerConfig, CapSources]:
    """Return the configuration and the caps of tenants.

    Raises:
        ConfigError: One line naming the field, the rule and what was given.
    """
    config = load(KvManagerConfig, "kvmanager", argv=argv, environ=environ, examples=_EXAMPLES)
    caps = TenantBook(load_tenants(argv, environ).tenants).kv_caps()
    return config, CapSources(caps, dict(_cap_of_flag(text) for text in config.tenant_cap))


def _cap_of_flag(text: str) -> tuple[TenantId, int]:
    tenant, _, pages = text.rpartition("=")
    if not tenant or not pages.isdigit() or int(pages) < 1:
        raise ValueError(f"tenant_cap must be TENANT=PAGES, pages from 1, got {text!r}")
    return TenantId(tenant), int(pages)
