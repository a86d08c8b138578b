"""The `[[tenants]]` of a configuration file: declarations of the one model of a tenant, and their keys.

Knows TOML and where the file is named. Checks one tenant at a time and all of them together as every store
does, and bands by the file's own `[[scheduler.bands]]`: it does not know what a scheduler elsewhere has. An
error never shows a key.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.chassis.config import config_file
from services.chassis.fatal import ConfigError
from services.domain.bands import Bands
from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook
from services.domain.tenant_document import check_currency, tenants_from_documents

LEAST_KEY_CHARS = 8
_HMAC = re.compile(r"[0-9a-f]{64}")
_KEY_FIELDS = ("key", "key_hmac")


@dataclass(frozen=True, slots=True)
class DeclaredKey:
    """A tenant's key as the file has it: itself, or its HMAC-SHA256 under the server's key."""

    tenant: TenantId
    key: str | None = field(default=None, repr=False)
    hmac: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredTenants:
    """What a file declares."""

    tenants: tuple[Tenant, ...] = ()
    keys: tuple[DeclaredKey, ...] = ()


def load_tenants(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> DeclaredTenants:
    """Return the tenants of the file that `--config` or QUIRE_CONFIG names; none without a file.

    Raises:
        ConfigError: One line naming the tenant, the field, the rule and the nearest valid value.
    """
    path = config_file(argv, environ)
    if path is None:
        return DeclaredTenants()
    content = tomllib.loads(path.read_text("utf-8"))
    tables = content.get("tenants", [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise ConfigError(f"{path}: tenants must be tables, each [[tenants]]")
    documents = [{name: one[name] for name in one if name not in _KEY_FIELDS} for one in tables]
    try:
        tenants = tenants_from_documents(documents)
        bands = _bands_of(path, content)
        for tenant, document in zip(tenants, documents, strict=True):
            check_currency(f"tenants[{tenant.id}].prices.currency", None, tenant)
            if "band" in document:  # Who names none is served in the last one where there is no `standard`.
                bands.check(f"tenants[{tenant.id}].band", tenant.band)
        TenantBook(tenants, bands)
    except InvalidField as error:
        raise ConfigError(f"{path}: [[tenants]] {error.message}") from error
    keys = [key for one in tables for key in _keys_of(path, one)]
    return DeclaredTenants(tenants, tuple(keys))


def _bands_of(path: Path, content: Mapping[str, object]) -> Bands:
    """Return the bands that the file gives the scheduler, or those that it has without a file's."""
    section = content.get("scheduler")
    tables = section.get("bands", []) if isinstance(section, dict) else []
    names = tuple(str(one.get("name")) for one in tables if isinstance(one, dict))
    try:
        return Bands(names) if names else Bands()
    except ValueError as error:
        raise ConfigError(f"{path}: [[scheduler.bands]] {error}") from error


def _keys_of(path: Path, table: Mapping[str, object]) -> list[DeclaredKey]:
    tenant = TenantId(str(table["id"]))
    keys = []
    key, hmac = table.get("key"), table.get("key_hmac")
    if key is not None:
        if not isinstance(key, str) or len(key) < LEAST_KEY_CHARS:
            raise ConfigError(f"{path}: [[tenants]] {tenant}: key must be at least 8 characters long")
        keys.append(DeclaredKey(tenant, key=key))
    if hmac is not None:
        if not isinstance(hmac, str) or not _HMAC.fullmatch(hmac):
            raise ConfigError(f"{path}: [[tenants]] {tenant}: key_hmac must be 64 hex digits in lower case")
        keys.append(DeclaredKey(tenant, hmac=hmac))
    return keys
