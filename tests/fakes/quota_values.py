"""Accounts, reservations and settlements for tests of quota stores."""

import uuid
from collections.abc import Sequence

from gateway.stores.quota import QuotaStore, Reservation, Running, ScopeUse, Settlement
from services.domain.errors import QuotaExceeded
from services.domain.ids import RequestId, TenantId
from services.domain.limits import Account, Allowance, Limits, Rate, Scope, ScopeKind


def an_account(
    *limits: Limits, organisation: str | None = None, tenant: str = "team", allowance: Allowance | None = None
) -> Account:
    """Return a tenant's account below an organisation of its own, with one scope for each of `limits`."""
    name = organisation or uuid.uuid4().hex
    ids = {ScopeKind.PARENT: name, ScopeKind.TENANT: tenant}
    scopes = tuple(
        Scope(kind=kind, id=ids.get(kind, f"{tenant}/{kind}"), limits=one)
        for kind, one in zip(ScopeKind, limits or (Limits(),), strict=False)
    )
    return Account(tenant=TenantId(tenant), organisation=TenantId(name), scopes=scopes, allowance=allowance)


def with_limits(account: Account, *limits: Limits) -> Account:
    """Return the account after its limits were edited."""
    return an_account(*limits, organisation=account.organisation, tenant=account.tenant)


def simple(concurrency: int = 100, tokens: int = 1000, **more: str) -> Account:
    """Return an account of one scope with limits of two kinds."""
    limits = Limits(max_concurrency=concurrency, tokens_per_minute=Rate(per_minute=tokens))
    return an_account(limits, **more)


def a_reservation(
    account: Account, name: object = "r", prompt: int = 10, output: int = 90, n: int = 1, key: str = ""
) -> Reservation:
    return Reservation(
        id=RequestId(str(name)),
        account=account,
        num_choices=n,
        prompt_tokens=prompt,
        output_tokens=output,
        idempotency_key=key,
    )


def a_settlement(
    account: Account,
    name: object = "r",
    prompt: int = 10,
    output: int = 30,
    key: str = "",
    ending: bytes = b"",
) -> Settlement:
    return Settlement(
        id=RequestId(str(name)),
        account=account,
        prompt_tokens=prompt,
        output_tokens=output,
        ending=ending,
        idempotency_key=key,
    )


def a_running(account: Account, name: object = "r", used: int = 0, n: int = 1, key: str = "") -> Running:
    return Running(a_reservation(account, name, n=n, key=key), used)


async def use_of(store: QuotaStore, account: Account) -> ScopeUse:
    """Return the use of the account's first scope."""
    return (await store.use(account))[0]


async def admits(store: QuotaStore, reservation: Reservation) -> bool:
    try:
        await store.reserve(reservation)
    except QuotaExceeded:
        return False
    return True


def held_by(uses: Sequence[ScopeUse]) -> list[tuple[int, int]]:
    """Return choices and tokens that each scope has reserved."""
    return [(use.num_leases, use.reserved_tokens) for use in uses]
