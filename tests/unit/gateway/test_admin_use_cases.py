"""Changes of tenants are checked as a whole, made once, and seen by every gateway."""

import asyncio
import json

import pytest

from gateway.core.directory import Change, Kind, TenantDirectory
from gateway.core.keys import ApiKey
from gateway.key_admin import KeyAdmin
from gateway.tenant_admin import TenantAdmin
from gateway.tenant_feed import TenantFeed
from services.domain.errors import (
    DependencyDown,
    InvalidField,
    NameTaken,
    StaleChange,
    UnknownKey,
    UnknownTenant,
)
from services.domain.ids import TenantId
from services.domain.tenant import Prices, Tenant
from tests.fakes.tenants_memory import MemoryTenantLog

FILE, A, B = (TenantId(name) for name in ("file", "a", "b"))
WHO = "local/admin"
SERVER_KEY = b"server key of the tests"


class Gateway:
    """One of several on the same log."""

    def __init__(self, log: MemoryTenantLog) -> None:
        declared = [Tenant(id=FILE, kv_pages=50)]
        self.directory = TenantDirectory(declared, [ApiKey(id="filekey1", tenant=FILE, digest="0" * 64)])
        self.used: dict[str, float] = {}
        self.feed = TenantFeed(self.directory, log, lambda: self.used)
        self.admin = TenantAdmin(self.feed)
        self.keys = KeyAdmin(self.feed, log, SERVER_KEY, clock=lambda: 1000.0)


@pytest.fixture
def log() -> MemoryTenantLog:
    return MemoryTenantLog()


@pytest.fixture
def one(log: MemoryTenantLog) -> Gateway:
    return Gateway(log)


@pytest.fixture
def other(log: MemoryTenantLog) -> Gateway:
    return Gateway(log)


async def test_a_tenant_is_added_changed_and_taken_away(one: Gateway, other: Gateway) -> None:
    made = await one.admin.create({"id": "a", "weight": 2, "daily": 5}, who=WHO)
    await other.feed.refresh()
    assert other.directory.book.get(A) == made.tenant == Tenant(id=A, weight=2, limits=made.tenant.limits)
    changed = await other.admin.update({"id": "a", "name": "Team A"}, ["name", "daily"], etag="", who=WHO)
    assert (changed.tenant.name, changed.tenant.weight, changed.tenant.limits.daily) == ("Team A", 2.0, None)
    assert changed.etag != made.etag
    assert (await one.admin.get(A))[0] == changed
    await one.admin.delete(A, etag=changed.etag, who=WHO)
    with pytest.raises(UnknownTenant):
        await other.admin.get(A)


async def test_without_a_mask_all_fields_are_set(one: Gateway) -> None:
    await one.admin.create({"id": "a", "weight": 2, "name": "Team A"}, who=WHO)
    changed = await one.admin.update({"id": "a", "name": "New"}, [], etag="", who=WHO)
    assert changed.tenant == Tenant(id=A, name="New")


async def test_what_is_refused_changes_nothing(one: Gateway, log: MemoryTenantLog) -> None:
    made = await one.admin.create({"id": "a"}, who=WHO)
    await one.admin.create({"id": "b", "parent": "a"}, who=WHO)
    before = await log.load()
    with pytest.raises(NameTaken):
        await one.admin.create({"id": "a"}, who=WHO)
    with pytest.raises(NameTaken):
        await one.admin.create({"id": "file"}, who=WHO)
    with pytest.raises(InvalidField, match="nearest valid: a"):
        await one.admin.create({"id": "c", "parent": "aa"}, who=WHO)
    with pytest.raises(InvalidField, match="weight: must be a number"):
        await one.admin.update({"id": "a", "weight": -1}, ["weight"], etag="", who=WHO)
    with pytest.raises(InvalidField, match="nearest valid: weight"):
        await one.admin.update({"id": "a"}, ["wieght"], etag="", who=WHO)
    with pytest.raises(InvalidField, match="no descendant"):
        await one.admin.update({"id": "a", "parent": "b"}, ["parent"], etag="", who=WHO)
    with pytest.raises(InvalidField, match="without children, a has b"):
        await one.admin.delete(A, etag="", who=WHO)
    with pytest.raises(StaleChange, match=made.etag):
        await one.admin.update({"id": "a", "weight": 3}, ["weight"], etag="0000", who=WHO)
    with pytest.raises(InvalidField, match="configuration file"):
        await one.admin.update({"id": "file", "weight": 3}, ["weight"], etag="", who=WHO)
    with pytest.raises(UnknownTenant, match="nearest known: file"):
        await one.admin.delete(TenantId("fil"), etag="", who=WHO)
    assert await log.load() == before


async def test_a_stored_tenant_with_a_currency_of_before_is_served_and_edited(
    one: Gateway, log: MemoryTenantLog
) -> None:
    prices = {"currency": "euros", "output_per_million": 2.0}
    stored = {"id": "a", "prices": prices}
    change = Change(kind=Kind.TENANT, id="a", tenant=A, before=None, after=stored)
    await log.commit([change], who=WHO, store="", version=0, mark="")
    await one.feed.refresh()
    assert one.directory.problems == []
    served = one.directory.book.effective(A)
    assert served is not None
    assert served.prices == Prices(currency="euros", output_per_million=2.0)
    edited = await one.admin.update({"id": "a", "weight": 3}, ["weight"], etag="", who=WHO)
    assert (edited.tenant.weight, edited.tenant.prices) == (3.0, served.prices)
    for currency in ("dollars", "EURO"):
        document = {"id": "a", "prices": {**prices, "currency": currency}}
        with pytest.raises(InvalidField, match=r"a\.prices\.currency: must be an ISO 4217 code"):
            await one.admin.update(document, ["prices"], etag="", who=WHO)
        with pytest.raises(InvalidField, match=r"b\.prices\.currency: must be an ISO 4217 code"):
            await one.admin.create({**document, "id": "b"}, who=WHO)
    applied = await one.admin.apply([stored], delete_missing=False, etag="", who=WHO)
    assert [entry.after for entry in applied.changes] == [stored], "back as it was; the weight goes"
    fixed = {"id": "a", "prices": {**prices, "currency": "EUR"}}
    await one.admin.update(fixed, ["prices"], etag="", who=WHO)
    with pytest.raises(InvalidField, match="ISO 4217"):
        await one.admin.update(stored, ["prices"], etag="", who=WHO)


async def test_a_dry_run_checks_and_changes_nothing(one: Gateway, log: MemoryTenantLog) -> None:
    made = await one.admin.create({"id": "a"}, who=WHO, dry_run=True)
    assert made.tenant == Tenant(id=A)
    with pytest.raises(InvalidField, match="a known tenant"):
        await one.admin.create({"id": "a", "parent": "gone"}, who=WHO, dry_run=True)
    await one.admin.apply([{"id": "a"}], delete_missing=False, etag="", who=WHO, dry_run=True)
    assert (await log.load()).version == 0


async def test_changing_nothing_leaves_no_trace(one: Gateway, log: MemoryTenantLog) -> None:
    await one.admin.create({"id": "a", "weight": 2}, who=WHO)
    await one.admin.update({"id": "a", "weight": 2.0}, ["weight"], etag="", who=WHO)
    assert len(await log.audit()) == 1


async def test_a_declaration_is_applied_whole_and_only_once(one: Gateway, log: MemoryTenantLog) -> None:
    documents = [{"id": "b", "parent": "a"}, {"id": "a", "weight": 2}, {"id": "file", "kv_pages": 50}]
    first = await one.admin.apply(documents, delete_missing=False, etag="", who=WHO)
    assert [(change.id, change.before) for change in first.changes] == [("b", None), ("a", None)]
    again = await one.admin.apply(documents, delete_missing=False, etag="", who=WHO)
    assert again.changes == []
    smaller = await one.admin.apply([{"id": "a"}], delete_missing=True, etag=again.etag, who=WHO)
    assert [(change.id, change.after) for change in smaller.changes] == [("a", {"id": "a"}), ("b", None)]
    assert {one.id for one in one.directory.book} == {"file", "a"}
    with pytest.raises(StaleChange, match="since the etag"):
        await one.admin.apply(documents, delete_missing=False, etag=again.etag, who=WHO)
    with pytest.raises(InvalidField, match=r"tenants\[a\]\.weight"):
        await one.admin.apply([{"id": "b"}, {"id": "a", "weight": 0}], delete_missing=False, etag="", who=WHO)
    with pytest.raises(InvalidField, match="configuration file"):
        await one.admin.apply([{"id": "file"}], delete_missing=False, etag="", who=WHO)
    assert len(await log.audit()) == 4


async def test_gateways_that_change_at_once_all_succeed_or_are_refused_for_the_whole(
    one: Gateway, other: Gateway, log: MemoryTenantLog
) -> None:
    documents = [{"id": "org"}, {"id": "a", "parent": "org"}, {"id": "b", "parent": "org"}]
    await one.admin.apply(documents, delete_missing=False, etag="", who=WHO)
    await asyncio.gather(
        one.admin.update({"id": "a", "weight": 3}, ["weight"], etag="", who=WHO),
        other.admin.update({"id": "a", "name": "A"}, ["name"], etag="", who=WHO),
    )
    assert (await one.admin.get(A))[0].tenant == Tenant(id=A, parent=TenantId("org"), weight=3, name="A")
    outcomes = await asyncio.gather(
        one.admin.update({"id": "a", "parent": "b"}, ["parent"], etag="", who=WHO),
        other.admin.update({"id": "b", "parent": "a"}, ["parent"], etag="", who=WHO),
        return_exceptions=True,
    )
    assert [isinstance(outcome, InvalidField) for outcome in outcomes].count(True) == 1


async def test_a_tenant_stays_in_its_organisation_where_its_counters_are(
    one: Gateway, log: MemoryTenantLog
) -> None:
    documents = [
        {"id": "a"},
        {"id": "unit", "parent": "a"},
        {"id": "team", "parent": "a"},
        {"id": "b"},
    ]
    await one.admin.apply(documents, delete_missing=False, etag="", who=WHO)
    before = await log.load()
    with pytest.raises(
        InvalidField, match=r"parent: must be inside team's organisation, a, .*nearest valid: a"
    ):
        await one.admin.update({"id": "team", "parent": "b"}, ["parent"], etag="", who=WHO)
    with pytest.raises(InvalidField, match="parent: must be inside team's organisation"):
        await one.admin.update({"id": "team"}, ["parent"], etag="", who=WHO)
    moved = [*documents[:3], {"id": "b", "parent": "a"}]
    with pytest.raises(InvalidField, match="parent: must be inside b's organisation, b"):
        await one.admin.apply(moved, delete_missing=False, etag="", who=WHO)
    assert await log.load() == before
    await one.admin.update({"id": "team", "parent": "unit"}, ["parent"], etag="", who=WHO)
    assert (await one.admin.get(TenantId("team")))[0].tenant.parent == "unit"


async def test_page_caps_are_published_with_the_change(one: Gateway, log: MemoryTenantLog) -> None:
    await one.admin.create({"id": "a", "parent": "file", "kv_pages": 20}, who=WHO)
    assert json.loads(log.kv_caps or "") == {"a": 20, "file": 30}
    await one.admin.delete(A, etag="", who=WHO)
    assert json.loads(log.kv_caps or "") == {}


async def test_a_store_that_is_down_refuses_changes_and_keeps_what_is_known(
    one: Gateway, log: MemoryTenantLog
) -> None:
    await one.admin.create({"id": "a"}, who=WHO)
    log.is_down = True
    with pytest.raises(DependencyDown):
        await one.admin.create({"id": "b"}, who=WHO)
    with pytest.raises(DependencyDown):
        await one.feed.refresh()
    assert one.directory.book.get(A) is not None


async def test_keys_are_made_rotated_and_revoked(one: Gateway, other: Gateway, log: MemoryTenantLog) -> None:
    await one.admin.create({"id": "a"}, who=WHO)
    fields = {"tenant": "a", "label": "ci", "limits": {"max_concurrency": 2}}
    made = await one.keys.create(fields, lifetime_s=None, who=WHO)
    assert made.secret.startswith(f"quire_{made.key.id}_")
    assert made.secret not in repr(made)
    rotated = await other.keys.rotate(made.key.id, overlap_s=60, lifetime_s=100, who=WHO)
    assert rotated.old is not None
    assert (rotated.old.expires_at, rotated.key.expires_at) == (1060.0, 1100.0)
    assert (rotated.key.label, rotated.key.limits, rotated.key.tenant) == ("ci", made.key.limits, A)
    assert rotated.secret != made.secret
    await log.note_use({made.key.id: 990.0})
    listed = await one.keys.page(tenant=A, after="", limit=10)
    assert {(key.id, used) for key, used in listed} == {(made.key.id, 990.0), (rotated.key.id, None)}
    again = await one.keys.rotate(made.key.id, overlap_s=600, lifetime_s=None, who=WHO)
    assert again.old is not None
    assert again.old.expires_at == 1060.0  # A rotation never prolongs.
    await one.keys.revoke(rotated.key.id, who=WHO)
    await other.feed.refresh()
    assert rotated.key.id not in other.directory.keys
    assert made.secret not in str(await log.audit())
    assert [entry.change.kind for entry in await log.audit()].count(Kind.KEY) == 6


async def test_keys_that_cannot_be_are_refused(one: Gateway, log: MemoryTenantLog) -> None:
    await one.admin.create({"id": "a"}, who=WHO)
    with pytest.raises(UnknownTenant):
        await one.keys.create({"tenant": "gone"}, lifetime_s=None, who=WHO)
    with pytest.raises(InvalidField, match=r"lifetime_s: .*nearest valid: 1"):
        await one.keys.create({"tenant": "a"}, lifetime_s=0, who=WHO)
    with pytest.raises(InvalidField, match="overlap_s"):
        await one.keys.rotate("any", overlap_s=-1, lifetime_s=None, who=WHO)
    with pytest.raises(UnknownKey):
        await one.keys.revoke("gone", who=WHO)
    with pytest.raises(InvalidField, match="configuration file"):
        await one.keys.revoke("filekey1", who=WHO)
    assert len(await log.audit()) == 1


async def test_a_tenants_keys_go_with_it(one: Gateway) -> None:
    await one.admin.create({"id": "a"}, who=WHO)
    made = await one.keys.create({"tenant": "a"}, lifetime_s=None, who=WHO)
    gone = await one.admin.delete(A, etag="", who=WHO)
    assert [(change.kind, change.id) for change in gone] == [(Kind.KEY, made.key.id), (Kind.TENANT, "a")]
    assert made.key.id not in one.directory.keys
