"""Who a caller is comes from its credential; salts cannot be guessed or shared by accident."""

import pytest

from gateway.core.auth import LOCAL, Authenticator
from gateway.core.directory import TenantDirectory
from gateway.core.keys import ApiKey, KeyScope, digest_key, short_id
from gateway.core.request import Caller
from services.domain.errors import BadCredential, DependencyDown, NotYours
from services.domain.generation import RequestClass
from services.domain.ids import TenantId
from services.domain.limits import Limits
from tests.unit.gateway.builders import a_tenant

SERVER_KEY = b"server key of the tests"
ACME = TenantId("acme")
NOW = 1000.0


def a_key(key: str, **fields: object) -> ApiKey:
    """Return the record of a key of no form, which is found by its digest."""
    digest = digest_key(SERVER_KEY, key)
    return ApiKey(id=short_id(digest), tenant=ACME, digest=digest, **fields)  # type: ignore[arg-type]


def an_authenticator(*keys: ApiKey, server_key: bytes = SERVER_KEY) -> Authenticator:
    directory = TenantDirectory([a_tenant(), a_tenant(id=LOCAL)], keys)
    return Authenticator(directory, server_key, lambda: NOW)


@pytest.fixture
def authenticator() -> Authenticator:
    return an_authenticator(a_key("acme-key"))


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


def test_a_key_opens_what_its_scopes_say_until_it_ends() -> None:
    reader = an_authenticator(a_key("reader-key", scopes=frozenset({KeyScope.USAGE}), expires_at=NOW + 1))
    assert reader.authenticate("reader-key", from_loopback=False, scope=KeyScope.USAGE).tenant == ACME
    with pytest.raises(NotYours, match="generate"):
        reader.authenticate("reader-key", from_loopback=True)
    with pytest.raises(BadCredential, match="expired"):
        an_authenticator(a_key("old-key", expires_at=NOW)).authenticate("old-key", from_loopback=True)


@pytest.mark.failure("B179")
def test_an_admin_needs_a_key_from_everywhere(authenticator: Authenticator) -> None:
    with pytest.raises(BadCredential):
        authenticator.authenticate(None, from_loopback=True, scope=KeyScope.ADMIN)
    with pytest.raises(NotYours):
        authenticator.authenticate("acme-key", from_loopback=True, scope=KeyScope.ADMIN)


def test_use_is_noted_once_and_only_of_valid_keys(authenticator: Authenticator) -> None:
    caller = authenticator.authenticate("acme-key", from_loopback=False)
    authenticator.authenticate("acme-key", from_loopback=False)
    with pytest.raises(BadCredential):
        authenticator.authenticate("acme-kez", from_loopback=False)
    assert authenticator.take_used() == {caller.key_id: NOW}
    assert authenticator.take_used() == {}


def test_an_account_has_the_limits_of_the_key_as_they_are_now() -> None:
    authenticator = an_authenticator(a_key("small-key", limits=Limits(max_concurrency=2)))
    caller = authenticator.authenticate("small-key", from_loopback=False)
    account = authenticator.account_of(caller, model="tiny", request_class=RequestClass.SHORT)
    assert [scope.name for scope in account.scopes] == ["tenant/acme", f"key/acme/{caller.key_id}"]
    assert account.scopes[1].limits == Limits(max_concurrency=2)
    gone = Caller(tenant=TenantId("gone"), key_id="")
    with pytest.raises(BadCredential, match="not known any more"):
        authenticator.account_of(gone, model="tiny", request_class=RequestClass.SHORT)


@pytest.mark.failure("B035")
def test_salts_differ_by_server_key_tenant_and_callers_salt(authenticator: Authenticator) -> None:
    other = an_authenticator(server_key=b"another key")
    salts = {
        authenticator.salt_of(ACME, ""),
        authenticator.salt_of(ACME, "mine"),
        authenticator.salt_of(LOCAL, ""),
        authenticator.salt_of(TenantId("ac"), "me"),
        other.salt_of(ACME, ""),
    }
    assert len(salts) == 5
    assert authenticator.salt_of(ACME, "mine") == authenticator.salt_of(ACME, "mine")


def with_certificates(*keys: ApiKey) -> Authenticator:
    """Return one who knows acme's callers by certificate, and those of two more tenants."""
    tenants = [
        a_tenant(certificates=("team-a", "spiffe://acme/search")),
        a_tenant(id=TenantId("beta"), certificates=("team-b",)),
        a_tenant(id=LOCAL),
    ]
    return Authenticator(TenantDirectory(tenants, keys), SERVER_KEY, lambda: NOW)


def test_a_certificate_is_as_good_as_a_key() -> None:
    authenticator = with_certificates()
    for shown in (("team-a",), ("host-7", "spiffe://acme/search"), ("team-a", "spiffe://acme/search")):
        assert authenticator.authenticate(None, from_loopback=False, certificate=shown) == Caller(
            tenant=ACME, key_id=""
        )
    usage = authenticator.authenticate(
        None, from_loopback=False, certificate=("team-b",), scope=KeyScope.USAGE
    )
    assert usage.tenant == "beta"


def test_a_certificate_of_no_tenant_or_of_two_opens_nothing_from_nowhere() -> None:
    authenticator = with_certificates()
    with pytest.raises(BadCredential, match="no tenant has the certificate of Team-A"):
        authenticator.authenticate(None, from_loopback=True, certificate=("Team-A",))
    with pytest.raises(BadCredential, match="more than one tenant"):
        authenticator.authenticate(None, from_loopback=True, certificate=("team-a", "team-b"))


def test_a_key_that_is_given_decides_and_must_be_valid() -> None:
    authenticator = with_certificates(a_key("acme-key"))
    caller = authenticator.authenticate("acme-key", from_loopback=False, certificate=("team-b",))
    assert caller.tenant == ACME
    with pytest.raises(BadCredential, match="the key is not valid"):
        authenticator.authenticate("acme-kez", from_loopback=True, certificate=("team-a",))


@pytest.mark.failure("B179")
def test_a_certificate_opens_no_admins_call() -> None:
    with pytest.raises(BadCredential, match="a key is needed"):
        with_certificates().authenticate(
            None, from_loopback=True, certificate=("team-a",), scope=KeyScope.ADMIN
        )


def test_who_is_unknown_may_be_known_once_the_store_is_read() -> None:
    key, ended = a_key("acme-key"), a_key("old-key", expires_at=NOW)
    directory = TenantDirectory([a_tenant(certificates=("team-a",)), a_tenant(id=LOCAL)], [key, ended])
    directory.is_complete = False
    authenticator = Authenticator(directory, SERVER_KEY, lambda: NOW)
    stranger = Caller(tenant=TenantId("stranger"), key_id="")
    refused = [
        lambda: authenticator.identify("other-key", from_loopback=True),
        lambda: authenticator.identify(None, from_loopback=True, certificate=("team-b",)),
        lambda: authenticator.tenant_of(stranger),
    ]
    for call in refused:
        with pytest.raises(DependencyDown, match="could not be read from Redis yet"):
            call()
    assert authenticator.identify("acme-key", from_loopback=False).tenant == ACME
    assert authenticator.identify(None, from_loopback=False, certificate=("team-a",)).tenant == ACME
    assert authenticator.identify(None, from_loopback=True).tenant == LOCAL
    with pytest.raises(BadCredential, match="expired"):
        authenticator.identify("old-key", from_loopback=True)
    with pytest.raises(BadCredential, match="a key is needed"):
        authenticator.identify(None, from_loopback=False)
    directory.is_complete = True
    for call in refused:
        with pytest.raises(BadCredential):
            call()
