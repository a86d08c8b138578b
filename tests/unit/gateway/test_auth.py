"""Who a caller is comes from its credential; salts cannot be guessed or shared by accident."""

import pytest

from gateway.core.auth import LOCAL, Authenticator, StaticTenants, digest_key
from services.domain.errors import BadCredential
from services.domain.ids import TenantId
from tests.unit.gateway.builders import a_tenant

SERVER_KEY = b"server key of the tests"
ACME = TenantId("acme")


@pytest.fixture
def authenticator() -> Authenticator:
    tenants = StaticTenants([a_tenant()], {digest_key(SERVER_KEY, "acme-key"): ACME})
    return Authenticator(tenants, SERVER_KEY)


def test_a_valid_key_names_its_tenant_from_anywhere(authenticator: Authenticator) -> None:
    caller = authenticator.authenticate("acme-key", from_loopback=False)
    assert caller.tenant == ACME
    assert authenticator.tenant_of(caller) == a_tenant()
    assert "acme-key" not in caller.key_id


def test_no_key_is_the_local_tenant_on_loopback_only(authenticator: Authenticator) -> None:
    assert authenticator.authenticate(None, from_loopback=True).tenant == LOCAL
    with pytest.raises(BadCredential):
        authenticator.authenticate(None, from_loopback=False)


@pytest.mark.parametrize("key", ["", "acme-ke", "acme-key ", "é"])
def test_any_key_given_must_be_valid(authenticator: Authenticator, key: str) -> None:
    with pytest.raises(BadCredential):
        authenticator.authenticate(key, from_loopback=True)


@pytest.mark.failure("B035")
def test_salts_differ_by_server_key_tenant_and_callers_salt(authenticator: Authenticator) -> None:
    other = Authenticator(StaticTenants([], {}), b"another key")
    salts = {
        authenticator.salt_of(ACME, ""),
        authenticator.salt_of(ACME, "mine"),
        authenticator.salt_of(LOCAL, ""),
        authenticator.salt_of(TenantId("ac"), "me"),
        other.salt_of(ACME, ""),
    }
    assert len(salts) == 5
    assert authenticator.salt_of(ACME, "mine") == authenticator.salt_of(ACME, "mine")


def test_tenants_declared_twice_or_keys_without_one_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        StaticTenants([a_tenant(), a_tenant()], {})
    with pytest.raises(ValueError, match="unknown tenant"):
        StaticTenants([], {"0" * 64: ACME})
