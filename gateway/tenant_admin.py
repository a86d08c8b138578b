"""The use case of whoever administers tenants: look, add, change, take away, declare all at once.

Whatever is changed is checked as a whole before it is committed, against the newest state. Knows documents,
nothing of messages and nothing of keys beyond that a tenant's go with it.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import orjson

from gateway.core.directory import Change, Document, Kind
from gateway.core.keys import key_to_document
from gateway.core.smaller_models import check_smaller_models
from gateway.tenant_feed import Edit, TenantFeed
from services.domain.bands import Bands
from services.domain.document_values import nearest_name, refused
from services.domain.errors import ErrorDetail, InvalidField, NameTaken, StaleChange
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook
from services.domain.tenant_document import (
    FIELDS,
    check_currency,
    tenant_from_document,
    tenant_to_document,
    tenants_from_documents,
)


@dataclass(frozen=True, slots=True)
class Record:
    """A tenant as it is kept."""

    tenant: Tenant
    is_declared: bool

    @property
    def etag(self) -> str:
        """Return a name of this state of it."""
        text = orjson.dumps(tenant_to_document(self.tenant), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(text).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Applied:
    """What a declaration of tenants changes."""

    changes: Sequence[Change]
    etag: str
    """Of all tenants and keys before."""


class TenantAdmin:
    """See the module. Every method works on the newest state, or raises DependencyDown.

    Args:
        models: Returns the models that are known here.
    """

    def __init__(self, feed: TenantFeed, models: Callable[[], Collection[str]] = tuple) -> None:
        self._feed = feed
        self._models = models
        self._directory = feed.directory

    async def get(self, tenant: TenantId) -> tuple[Record, Tenant]:
        """Return a tenant as it is declared and as it is served.

        Raises:
            UnknownTenant: There is none of that id.
        """
        await self._feed.refresh()
        record = self._record(tenant)
        effective = self._directory.book.effective(tenant)
        assert effective is not None
        return record, effective

    async def page(self, *, parent: TenantId | None, after: str, limit: int) -> list[Record]:
        """Return up to `limit` tenants by id, those after `after`."""
        await self._feed.refresh()
        found = [
            one for one in self._directory.book if one.id > after and (parent is None or one.parent == parent)
        ]
        return [self._record(one.id) for one in sorted(found, key=lambda one: one.id)[:limit]]

    async def create(self, document: Document, *, who: str, dry_run: bool = False) -> Record:
        """Add a tenant.

        Raises:
            InvalidField: It breaks a rule, or does not fit the others.
            NameTaken: There is one of that id.
        """
        tenant = tenant_from_document(document)

        def work_out() -> Edit:
            if tenant.id in self._directory.book:
                raise NameTaken(f"there is a tenant {tenant.id} already")
            return self._edit([self._put(tenant)])

        await self._feed.change(work_out, who=who, dry_run=dry_run)
        return Record(tenant, is_declared=False)

    async def update(
        self, document: Document, fields: Sequence[str], *, etag: str, who: str, dry_run: bool = False
    ) -> Record:
        """Set `fields` of a tenant to what `document` has, or to their default where it has nothing.

        Args:
            fields: None is all.
            etag: Of the state that is meant to be changed; empty: whichever it is.

        Raises:
            UnknownTenant: There is none of that id.
            StaleChange: It is in another state.
            InvalidField: It would break a rule, or not fit the others.
        """
        for field in fields:
            if field not in FIELDS or field == "id":
                raise refused("update_mask", "a field of Tenant but `id`", field, nearest_name(field, FIELDS))
        name = TenantId(str(document.get("id", "")))
        after: Tenant | None = None

        def work_out() -> Edit:
            nonlocal after
            record = self._changeable(name, etag)
            known = tenant_to_document(record.tenant)
            masked = fields or FIELDS
            kept = {field: value for field, value in known.items() if field not in masked}
            given = {field: value for field, value in document.items() if field in masked}
            after = tenant_from_document(kept | given | {"id": name})
            return self._edit([self._put(after)] if after != record.tenant else [])

        await self._feed.change(work_out, who=who, dry_run=dry_run)
        assert after is not None
        return Record(after, is_declared=False)

    async def delete(
        self, tenant: TenantId, *, etag: str, who: str, dry_run: bool = False
    ) -> Sequence[Change]:
        """Take a tenant and its keys away; return what goes.

        Raises:
            UnknownTenant: There is none of that id.
            StaleChange: It is in another state.
            InvalidField: It has children.
        """

        def work_out() -> Edit:
            self._changeable(tenant, etag)
            return self._edit(self._gone([tenant]))

        return (await self._feed.change(work_out, who=who, dry_run=dry_run)).changes

    async def apply(
        self, documents: object, *, delete_missing: bool, etag: str, who: str, dry_run: bool = False
    ) -> Applied:
        """Make tenants as they are declared; say what differs.

        Raises:
            InvalidField: One breaks a rule, or they do not fit together.
            StaleChange: `etag` is given, and something has changed since.
        """
        declared = tenants_from_documents(documents)
        before = ""

        def work_out() -> Edit:
            nonlocal before
            before = f"{self._directory.store}.{self._directory.version}"
            if etag and etag != before:
                raise StaleChange("tenants or keys have changed since the etag was given")
            changes = []
            for tenant in declared:
                known = self._directory.book.get(tenant.id)
                if known != tenant:
                    if known is not None:
                        self._changeable(tenant.id, "")
                    changes.append(self._put(tenant))
            if delete_missing:
                names = {one.id for one in declared}
                book = self._directory.book
                missing = [
                    one.id for one in book if one.id not in names and not self._directory.is_declared(one.id)
                ]
                changes += self._gone(missing)
            return self._edit(changes)

        edit = await self._feed.change(work_out, who=who, dry_run=dry_run)
        return Applied(edit.changes, before)

    def _record(self, tenant: TenantId) -> Record:
        found = self._directory.book.get(tenant)
        if found is None:
            raise self._directory.book.unknown(tenant)
        return Record(found, is_declared=self._directory.is_declared(tenant))

    def _changeable(self, tenant: TenantId, etag: str) -> Record:
        record = self._record(tenant)
        if record.is_declared:
            rule = "no tenant that a configuration file declares: change it there"
            raise refused("id", rule, tenant, None)
        if etag and etag != record.etag:
            raise StaleChange(
                f"tenant {tenant} has etag {record.etag} by now", ErrorDetail(metadata={"etag": record.etag})
            )
        return record

    def _put(self, tenant: Tenant) -> Change:
        known = self._directory.book.get(tenant.id)
        before = None if known is None else tenant_to_document(known)
        return _change(tenant.id, before, tenant_to_document(tenant))

    def _gone(self, tenants: Iterable[TenantId]) -> list[Change]:
        changes = []
        for tenant in tenants:
            for key in self._directory.keys_of(tenant):
                changes.append(
                    Change(kind=Kind.KEY, id=key.id, tenant=tenant, before=key_to_document(key), after=None)
                )
            changes.append(_change(tenant, tenant_to_document(self._record(tenant).tenant), None))
        return changes

    def _edit(self, changes: Sequence[Change]) -> Edit:
        """Check that everything fits together afterwards, and that the scheduler has the bands. Before it was
        heard, those count that there are where none are configured."""
        tenants = {
            TenantId(one.id): None if one.after is None else tenant_from_document(one.after)
            for one in changes
            if one.kind is Kind.TENANT
        }
        bands = self._directory.bands or Bands()
        for name, after in tenants.items():
            if after is not None:
                bands.check("band", after.band)
                check_currency(f"{name}.prices.currency", self._directory.book.get(name), after)
            children = [one.id for one in self._directory.book.children(name) if one.id not in tenants]
            if after is None and children:
                raise InvalidField("id", f"must be of a tenant without children, {name} has {children[0]}")
        book, models = self._directory.book.replaced(tenants), self._models()
        for name, after in tenants.items():
            if after is not None:
                check_smaller_models(name, self._directory.book, book, models)
                if name in self._directory.book:
                    self._check_stays(name, book)
        return Edit(changes, book)

    def _check_stays(self, name: TenantId, after: TenantBook) -> None:
        """Refuse to take a tenant to another organisation: its counters and its usage stay where they are, so
        that its budgets would begin anew and what it used before would be in no report."""
        known = self._directory.book.lineage(name)
        organisation, parent = known[-1].id, after.lineage(name)[0].parent
        if after.lineage(name)[-1].id != organisation:
            rule = f"inside {name}'s organisation, {organisation}, where its counters and usage are"
            raise refused("parent", rule, parent, known[0].parent)


def _change(tenant: TenantId, before: Document | None, after: Document | None) -> Change:
    return Change(kind=Kind.TENANT, id=tenant, tenant=tenant, before=before, after=after)
