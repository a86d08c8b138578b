"""Says who calls, from the credential alone, and what that tenant may have.

Keys are known only as HMAC-SHA256 under the server's key and compared in constant time. Knows nothing of
headers, of counters or of where tenants are kept: `TenantStore` is all that a richer store must offer.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.request import Caller
from services.domain.errors import BadCredential
from services.domain.generation import Band, RequestClass
from services.domain.ids import TenantId
from services.domain.limits import Account, Limits, Rate, Scope, ScopeKind

LOCAL = TenantId("local")
"""The tenant of a call from loopback that brings no key."""

_SALT_VERSION = b"quire.salt.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who pays, and the limits that hold for it."""

    id: TenantId
    band: Band = Band.STANDARD
    """The best band it can get."""
    max_concurrency: int = 256
    """Choices (sequences) it may have waiting or running at once."""
    tokens_per_minute: int = 2_000_000
    """Prompt + output tokens a minute, and the most at once."""
    default_max_output_tokens: int = 1024
    """Output limit of a call that gives none."""
    max_output_tokens: int | None = None
    """Largest output limit it may ask for; None: what the model allows."""


def account_of(tenant: Tenant) -> Account:
    """Return what a tenant without parents, keys' or models' limits counts against."""
    limits = Limits(
        max_concurrency=tenant.max_concurrency, tokens_per_minute=Rate(per_minute=tenant.tokens_per_minute)
    )
    scope = Scope(kind=ScopeKind.TENANT, id=tenant.id, limits=limits)
    return Account(tenant=tenant.id, organisation=tenant.id, scopes=(scope,))


class TenantStore(Protocol):
    """Where tenants and their keys come from."""

    def tenant_of_key(self, digest: str) -> TenantId | None:
        """Return whose key has this digest (see `digest_key`), compared in constant time."""
        ...

    def tenant(self, tenant: TenantId) -> Tenant:
        """Return what is known of an authenticated tenant.

        Raises:
            BadCredential: It is gone.
        """
        ...


def digest_key(server_key: bytes, key: str) -> str:
    """Return what is stored of a tenant's key: HMAC-SHA256 under the server's key, in hex."""
    return hmac.new(server_key, key.encode(), hashlib.sha256).hexdigest()


class StaticTenants:
    """Tenants from a configuration file, read once."""

    def __init__(self, tenants: Iterable[Tenant], digests: Mapping[str, TenantId]) -> None:
        """Hold `tenants` and their keys' digests.

        Raises:
            ValueError: Two tenants of one id, or a key of an unknown tenant.
        """
        self._tenants: dict[TenantId, Tenant] = {}
        for tenant in tenants:
            if tenant.id in self._tenants:
                raise ValueError(f"tenant {tenant.id} is declared twice")
            self._tenants[tenant.id] = tenant
        for owner in digests.values():
            if owner not in self._tenants:
                raise ValueError(f"a key names the unknown tenant {owner}")
        local = Tenant(id=LOCAL, band=Band.INTERACTIVE, max_concurrency=4096, tokens_per_minute=100_000_000)
        self._tenants.setdefault(LOCAL, local)
        self._digests = dict(digests)

    def tenant_of_key(self, digest: str) -> TenantId | None:
        found: TenantId | None = None
        for known, owner in self._digests.items():
            # Every digest is looked at, so that time tells nothing of which one matched.
            if hmac.compare_digest(known, digest):
                found = owner
        return found

    def tenant(self, tenant: TenantId) -> Tenant:
        known = self._tenants.get(tenant)
        if known is None:
            raise BadCredential("the tenant of this key is not known any more")
        return known


class Authenticator:
    """Turns a credential into a caller and names what only the server may derive from a tenant."""

    def __init__(self, store: TenantStore, server_key: bytes) -> None:
        self._store = store
        self._server_key = server_key

    def authenticate(self, key: str | None, *, from_loopback: bool) -> Caller:
        """Return the caller behind `key`; without one, tenant `local` on loopback.

        Raises:
            BadCredential: The key is not valid, or one is needed and missing.
        """
        if key is None:
            if not from_loopback:
                raise BadCredential("a key is needed: send it as `authorization: Bearer KEY`")
            return Caller(tenant=LOCAL, key_id="")
        digest = digest_key(self._server_key, key)
        tenant = self._store.tenant_of_key(digest)
        if tenant is None:
            raise BadCredential("the key is not valid")
        return Caller(tenant=tenant, key_id=digest[:8])

    def tenant_of(self, caller: Caller) -> Tenant:
        """Return the tenant's limits.

        Raises:
            BadCredential: It is gone.
        """
        return self._store.tenant(caller.tenant)

    def account_of(self, caller: Caller, *, model: str, request_class: RequestClass) -> Account:
        """Return all that a request of the caller counts against, as the limits are now.

        Raises:
            BadCredential: The tenant is gone.
        """
        return account_of(self.tenant_of(caller))

    def organisation_of(self, caller: Caller) -> TenantId:
        """Return the topmost parent of the caller's tenant."""
        return caller.tenant

    def salt_of(self, tenant: TenantId, cache_salt: str) -> bytes:
        """Return the salt of a tenant's block hashes: nobody outside the server can guess it.

        Prefixes are shared only where tenant and `cache_salt` are equal.
        """
        mac = hmac.new(self._server_key, _SALT_VERSION, hashlib.sha256)
        for part in (tenant.encode(), cache_salt.encode()):
            mac.update(len(part).to_bytes(4, "little") + part)
        return mac.digest()
