"""What can be set from outside, tenants included.

Knows ranges; how values are read is the chassis' business. Of the file's `[[tenants]]` everything but
`kv_pages` is read here: that one is the kvmanager's.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.core.auth import StaticTenants, Tenant, digest_key
from services.chassis.config import ConfigError, check_range, load
from services.chassis.config_values import ValueRule, convert
from services.chassis.grpc import split_address
from services.chassis.logging import LEVELS
from services.domain.generation import Band
from services.domain.ids import TenantId

_TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HMAC = re.compile(r"[0-9a-f]{64}")


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
    probe_port: int = 9100
    """Port of /healthz, /readyz and /metrics; 0 takes any free one."""
    scheduler: str = "127.0.0.1:50052"
    """host:port of the scheduler."""
    redis_url: str = "redis://127.0.0.1:6390/0"
    """Where quotas are kept."""
    redis_limit_ms: float = 50.0
    """Milliseconds after which a silent Redis counts as down; raise it where one busy host runs all."""
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
    tokenizer_threads: int = 2
    """Threads that tokenise."""
    tls_cert: Path | None = None
    """Certificate chain for TLS (PEM)."""
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
        for name in ("port", "http_port", "probe_port"):
            check_range(name, getattr(self, name), 0, 65535)
        check_range("max_live", self.max_live, 1)
        check_range("max_unread_tokens", self.max_unread_tokens, 16)
        check_range("long_from_tokens", self.long_from_tokens, 1)
        check_range("tokenizer_threads", self.tokenizer_threads, 1, 64)
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be given together")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantEntry:
    """One `[[tenants]]` table."""

    id: str
    key: str | None = None
    """The tenant's key itself, for local use."""
    key_hmac: str | None = None
    """Or its HMAC-SHA256 under the server's key, 64 hex digits."""
    band: Band = Band.STANDARD
    """The best band it gets: interactive, standard or batch."""
    max_concurrency: int = 256
    """Sequences it may have waiting or running at once."""
    tokens_per_minute: int = 2_000_000
    """Prompt + output tokens a minute."""
    default_max_output_tokens: int = 1024
    """Output limit of a call that gives none."""
    max_output_tokens: int | None = None
    """Largest output limit it may ask for."""
    kv_pages: int | None = None
    """Most KV pages; read by the kvmanager."""


def load_config(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[GatewayConfig, tuple[TenantEntry, ...]]:
    """Return the configuration and the file's tenants.

    Raises:
        ConfigError: One line naming the field, the rule and what was given.
    """
    config = load(GatewayConfig, "gateway", argv=argv, environ=environ)
    return config, _tenants_of_file(_config_file(argv, os.environ if environ is None else environ))


def static_tenants(entries: Sequence[TenantEntry], server_key: bytes) -> StaticTenants:
    """Return the tenants of a configuration file as the authenticator's store.

    Raises:
        ConfigError: Two of one id.
    """
    digests: dict[str, TenantId] = {}
    for entry in entries:
        if entry.key is not None:
            digests[digest_key(server_key, entry.key)] = TenantId(entry.id)
        if entry.key_hmac is not None:
            digests[entry.key_hmac] = TenantId(entry.id)
    try:
        return StaticTenants([_tenant_of(entry) for entry in entries], digests)
    except ValueError as exc:
        raise ConfigError(f"[[tenants]]: {exc}") from exc


def _tenant_of(entry: TenantEntry) -> Tenant:
    return Tenant(
        id=TenantId(entry.id),
        band=entry.band,
        max_concurrency=entry.max_concurrency,
        tokens_per_minute=entry.tokens_per_minute,
        default_max_output_tokens=entry.default_max_output_tokens,
        max_output_tokens=entry.max_output_tokens,
    )


def _config_file(argv: Sequence[str] | None, environ: Mapping[str, str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    given: str | None = parser.parse_known_args(argv)[0].config
    return given or environ.get("QUIRE_CONFIG")


def _tenants_of_file(path: str | None) -> tuple[TenantEntry, ...]:
    if path is None:
        return ()
    tables = tomllib.loads(Path(path).read_text("utf-8")).get("tenants", [])
    if not isinstance(tables, list):
        raise ConfigError(f"{path}: tenants must be tables, each [[tenants]]")
    entries = []
    for number, table in enumerate(tables, start=1):
        try:
            entry: TenantEntry = convert(TenantEntry, table)
            _check_tenant(entry)
        except ValueRule as exc:
            # Never the table itself: it holds a key.
            raise ConfigError(f"{path}: [[tenants]] number {number} must be {exc}") from exc
        except ValueError as exc:
            raise ConfigError(f"{path}: [[tenants]] number {number}: {exc}") from exc
        entries.append(entry)
    return tuple(entries)


def _check_tenant(entry: TenantEntry) -> None:
    # The id goes into Redis keys inside a hash tag, so no brace may be in it.
    if not _TENANT_ID.fullmatch(entry.id):
        raise ValueError("id must be 1 to 64 letters, digits, `_`, `.` or `-`, a letter or digit first")
    if entry.key is not None and len(entry.key) < 8:
        raise ValueError("key must be at least 8 characters long")
    if entry.key_hmac is not None and not _HMAC.fullmatch(entry.key_hmac):
        raise ValueError("key_hmac must be 64 hex digits in lower case")
    for name in ("max_concurrency", "tokens_per_minute", "default_max_output_tokens"):
        check_range(name, getattr(entry, name), 1)
    if entry.max_output_tokens is not None:
        check_range("max_output_tokens", entry.max_output_tokens, 1)
