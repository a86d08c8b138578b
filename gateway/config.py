"""What can be set from outside, tenants included.

Knows ranges; how values are read is the chassis' business, what a tenant may be `services.domain`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core.auth import LOCAL, LOCAL_TENANT
from gateway.core.directory import TenantDirectory
from gateway.core.keys import ApiKey, KeyScope, digest_key, short_id
from services.chassis.config import check_range, load
from services.chassis.config_tenants import DeclaredTenants, load_tenants
from services.chassis.grpc import split_address
from services.chassis.logging import LEVELS

LEAST_ADMIN_KEY_CHARS = 20
_EXAMPLES = """examples:
  quire gateway --model mine=/models/mine --scheduler 10.0.0.7:50052 --redis-url redis://10.0.0.7:6379/0
  quire gateway --config quire.toml --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  quire gateway --model mine=/models/mine --port 50151 --http-port 8100 --admin-port 50154 --probe-port 9200
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Run the gateway: the public gRPC and HTTP doors, credentials, quotas, text."""

    name: str = "gateway"
    """Name of this process towards its peers."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 50051
    """gRPC port; 0 takes any free one."""
    http_port: int = 8000
    """Port of the OpenAI-compatible door; 0 takes any free one."""
    admin_host: str = "127.0.0.1"
    """Address on which the admin door listens."""
    admin_port: int = 50054
    """Port of the admin door; 0 takes any free one."""
    admin_key: str = field(default="", repr=False)
    """Secret that opens the admin door, of 20 characters or more; set it by QUIRE_GATEWAY_ADMIN_KEY. Without
    one only keys with the scope admin open it."""
    certificate_port: int | None = None
    """Port of the gRPC door for callers who show a certificate instead of a key; absent: there is none."""
    probe_port: int = 9100
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""
    scheduler: str = "127.0.0.1:50052"
    """host:port of the scheduler."""
    redis_url: str = "redis://127.0.0.1:6390/0"
    """Where quotas are kept."""
    redis_limit_ms: float = 50.0
    """Milliseconds after which a silent Redis counts as down; raise it where one busy host runs all."""
    journal: Path | None = None
    """Folder, shared by gateways or not, where settlements wait while Redis takes none; those that a dead one
    left the next one makes that starts, or within a minute one that lives. Absent: in memory only, and lost
    with the process."""
    model: tuple[str, ...] = ()
    """NAME=PATH of a model folder or .gguf file: its tokenizer and chat template."""
    server_key: str = ""
    """Secret under which keys and cache salts are derived; set it by QUIRE_GATEWAY_SERVER_KEY. Without one
    it is drawn at start, and cached prefixes and key_hmac values do not outlive this process."""
    max_live: int = 4096
    """Requests that may be live here at once."""
    max_unread_tokens: int = 2048
    """Tokens that may wait for a caller who does not read, before its request is ended."""
    long_from_tokens: int = 2048
    """Prompts from this length on are of the long class."""
    retry_percent: float = 10.0
    """Further attempts, on another worker, per hundred requests; 0 makes none. 0 to 100."""
    tokenizer_threads: int = 2
    """Threads that tokenise."""
    tls_cert: Path | None = None
    """Certificate chain of the doors for callers, where it is another than that of [tls] (PEM)."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
    insecure: bool = False
    """Listen beyond loopback without TLS."""
    trace: str = "none"
    """Where spans go: none, otlp or file:PATH."""
    log_level: str = "info"
    """debug, info, warning or error."""

    def __post_init__(self) -> None:
        check_range("redis_limit_ms", self.redis_limit_ms, 1.0, 10_000.0)
        for name in ("port", "http_port", "admin_port", "probe_port"):
            check_range(name, getattr(self, name), 0, 65535)
        if self.certificate_port is not None:
            check_range("certificate_port", self.certificate_port, 0, 65535)
        check_range("max_live", self.max_live, 1)
        check_range("max_unread_tokens", self.max_unread_tokens, 16)
        check_range("long_from_tokens", self.long_from_tokens, 1)
        check_range("retry_percent", self.retry_percent, 0.0, 100.0)
        check_range("tokenizer_threads", self.tokenizer_threads, 1, 64)
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be given together")
        if self.admin_key and len(self.admin_key) < LEAST_ADMIN_KEY_CHARS:
            raise ValueError(f"admin_key must be at least {LEAST_ADMIN_KEY_CHARS} characters long")
        split_address(self.scheduler)
        self.models()

    def models(self) -> dict[str, Path]:
        """Return the paths of the models by name.

        Raises:
            ValueError: An entry is no NAME=PATH, or a name comes twice.
        """
        models: dict[str, Path] = {}
        for text in self.model:
            name, _, path = text.partition("=")
            if not name or not path:
                raise ValueError(f"model must be NAME=PATH, got {text!r}")
            if name in models:
                raise ValueError(f"model {name} is given twice")
            models[name] = Path(path).expanduser()
        return models


def load_config(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[GatewayConfig, DeclaredTenants]:
    """Return the configuration and the file's tenants.

    Raises:
        ConfigError: One line naming the field, the rule and what was given.
    """
    config = load(GatewayConfig, "gateway", argv=argv, environ=environ, examples=_EXAMPLES)
    return config, load_tenants(argv, environ)


def directory_of(
    declared: DeclaredTenants, server_key: bytes, admin_key: str | None = None
) -> TenantDirectory:
    """Return what a configuration file knows of tenants and keys, to which a store may add.

    Args:
        admin_key: Opens the admin door, nothing else.
    """
    tenants = {LOCAL: LOCAL_TENANT} | {tenant.id: tenant for tenant in declared.tenants}
    keys = []
    for one in declared.keys:
        digest = one.hmac if one.key is None else digest_key(server_key, one.key)
        assert digest is not None, "a declared key has one of both"
        keys.append(ApiKey(id=short_id(digest), tenant=one.tenant, digest=digest))
    if admin_key:
        digest = digest_key(server_key, admin_key)
        scopes = frozenset({KeyScope.ADMIN})
        keys.append(ApiKey(id=short_id(digest), tenant=LOCAL, digest=digest, scopes=scopes))
    return TenantDirectory(tenants.values(), keys)
