"""Says who calls, from the credential alone, and what holds for that tenant now.

Knows nothing of headers, of counters or of where tenants are kept: the directory has them in memory. Reads
the clock it is given.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence

from gateway.core.directory import TenantDirectory
from gateway.core.keys import KeyScope, find_key
from gateway.core.request import Caller
from services.domain.errors import BadCredential, DependencyDown, ErrorDetail, NotYours, ServeError
from services.domain.generation import RequestClass
from services.domain.ids import TenantId
from services.domain.limits import Account, Allowance, Limits, Rate, Scope
from services.domain.tenant import Tenant

LOCAL = TenantId("local")
"""The tenant of a call from loopback that brings no key."""
LOCAL_TENANT = Tenant(
    id=LOCAL,
    band="interactive",
    limits=Limits(max_concurrency=4096, tokens_per_minute=Rate(per_minute=100_000_000)),
    # Nobody pays for it, and a busy laptop starves its Redis at times.
    outage_allowance=Allowance(max_concurrency=256, tokens=4_000_000),
)
"""What it may, unless a file says otherwise."""

_KEY_NEEDED = "a key is needed: send it as `authorization: Bearer KEY`"
_SALT_VERSION = b"quire.salt.v1"


class Authenticator:
    """Turns a credential into a caller and names what only the server may derive from a tenant.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, directory: TenantDirectory, server_key: bytes, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._server_key = server_key
        self._clock = clock
        self._used: dict[str, float] = {}

    def authenticate(
        self,
        key: str | None,
        *,
        from_loopback: bool,
        certificate: Sequence[str] = (),
        scope: KeyScope = KeyScope.GENERATE,
    ) -> Caller:
        """Return the caller that `identify` finds, if it may do what `scope` says.

        Args:
            scope: What the call is about to do; an admin's calls are made with a key from everywhere.

        Raises:
            BadCredential: The key is not valid, or one is needed and missing.
            DependencyDown: See `identify`.
            NotYours: It is valid, but not for this.
        """
        if key is None and scope is KeyScope.ADMIN:
            raise BadCredential(_KEY_NEEDED)
        caller = self.identify(key, from_loopback=from_loopback, certificate=certificate)
        self.require(caller, scope)
        return caller

    def identify(self, key: str | None, *, from_loopback: bool, certificate: Sequence[str] = ()) -> Caller:
        """Return the caller behind `key`; without one, behind `certificate`; else `local` on loopback.

        A key that is given must be valid: nothing makes up for one that is not. What it is for is not asked.

        Args:
            certificate: Names in the certificate that the caller has proven to hold. It opens what a usual
                key does, never the admin's calls.

        Raises:
            BadCredential: The key is not valid, or one is needed and missing.
            DependencyDown: What was shown is not known, and the store was not read since the start.
        """
        if key is None and certificate:
            return Caller(tenant=self._holder_of(certificate), key_id="")
        if key is None:
            if not from_loopback:
                raise BadCredential(_KEY_NEEDED)
            return Caller(tenant=LOCAL, key_id="")
        found = find_key(self._directory.keys, self._server_key, key)
        if found is None:
            raise self._unknown("the key is not valid")
        if not found.is_valid(self._clock()):
            raise BadCredential("the key has expired")
        return Caller(tenant=found.tenant, key_id=found.id)

    def require(self, caller: Caller, scope: KeyScope) -> None:
        """Note that the caller's key is used for what `scope` says.

        Raises:
            NotYours: It is not for that.
        """
        key = self._directory.keys.get(caller.key_id)
        if key is None:
            return
        if scope not in key.scopes:
            raise NotYours(f"key {key.id} has no scope `{scope}`")
        self._used[key.id] = self._clock()

    def _holder_of(self, certificate: Sequence[str]) -> TenantId:
        book = self._directory.book
        holders = {holder for name in certificate if (holder := book.holder_of(name)) is not None}
        names = ", ".join(certificate)
        if not holders:
            raise self._unknown(f"no tenant has the certificate of {names}")
        if len(holders) > 1:
            raise BadCredential(f"more than one tenant has the certificate of {names}")
        return holders.pop()

    def _unknown(self, message: str) -> ServeError:
        """Return the refusal of who is not known: for good only once all are known who there are."""
        if self._directory.is_complete:
            return BadCredential(message)
        return DependencyDown(
            "tenants and keys could not be read from Redis yet", ErrorDetail(retry_after_s=1.0)
        )

    def take_used(self) -> dict[str, float]:
        """Return when keys were used since this was called last, by id, in seconds since 1970."""
        used, self._used = self._used, {}
        return used

    def tenant_of(self, caller: Caller) -> Tenant:
        """Return the tenant as it is served: its own values within its parents' bounds.

        Raises:
            BadCredential: It is gone.
            DependencyDown: It is not known, and the store was not read since the start.
        """
        known = self._directory.book.effective(caller.tenant)
        if known is None:
            raise self._unknown("the tenant of this key is not known any more")
        return known

    def account_of(
        self, caller: Caller, *, model: str = "", request_class: RequestClass | None = None
    ) -> Account:
        """Return all that a request of the caller counts against, as the limits are now.

        Args:
            model: The name that it called the model by; empty: what counts whatever it calls.
            request_class: None: what counts whatever the length.

        Raises:
            BadCredential: The tenant is gone.
        """
        self.tenant_of(caller)
        key = self._directory.keys.get(caller.key_id)
        return self._directory.book.account(
            caller.tenant,
            request_class=request_class,
            model=model,
            key_id=caller.key_id,
            key_limits=Limits() if key is None else key.limits,
        )

    def particular_scopes_of(self, caller: Caller) -> list[Scope]:
        """Return what some of a caller's requests count against, by their class or model.

        Raises:
            BadCredential: The tenant is gone.
        """
        self.tenant_of(caller)
        return self._directory.book.particular_scopes(caller.tenant)

    def organisation_of(self, caller: Caller) -> TenantId:
        """Return the topmost parent of the caller's tenant; the tenant itself where it is gone."""
        book = self._directory.book
        return book.lineage(caller.tenant)[-1].id if caller.tenant in book else caller.tenant

    def salt_of(self, tenant: TenantId, cache_salt: str) -> bytes:
        """Return the salt of a tenant's block hashes: nobody outside the server can guess it.

        Prefixes are shared only where tenant and `cache_salt` are equal.
        """
        mac = hmac.new(self._server_key, _SALT_VERSION, hashlib.sha256)
        for part in (tenant.encode(), cache_salt.encode()):
            mac.update(len(part).to_bytes(4, "little") + part)
        return mac.digest()
