"""All tenants and keys as this gateway knows them now: those of its file, and those of the store.

The file's are there from the start and cannot be changed; one of the store with the same id does not count.
What the store says is applied change by change. While it says nothing, the last state goes on. Knows neither
where the store is nor who asks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.core.keys import ApiKey, key_from_document, key_to_document
from gateway.core.revocations import Revocations
from services.domain.bands import Bands
from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook
from services.domain.tenant_document import tenant_from_document, tenant_to_document

Document = Mapping[str, Any]


class Kind(StrEnum):
    """What a change is of."""

    TENANT = "tenant"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One tenant or key before and after; None: it is not there."""

    kind: Kind
    id: str
    tenant: TenantId
    """Whose it is."""
    before: Document | None
    after: Document | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A change that was made: one entry of the audit stream, which is the feed of changes too."""

    version: int
    """Counts all changes of a store from 1."""
    mark: str = ""
    """Drawn for each commit: tells this change from another one that has its number after a failover."""
    who: str
    at: float
    """Seconds since 1970 by the store's clock."""
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Everything a store holds at one version."""

    store: str = ""
    """Drawn with the first change; empty before. Another one is another store."""
    version: int = 0
    mark: str = ""
    """Of the last change."""
    tenants: Mapping[str, Document] = field(default_factory=dict)
    keys: Mapping[str, Document] = field(default_factory=dict)


class TenantDirectory:
    """Finds tenants and keys; every look-up is from memory."""

    def __init__(self, declared: Iterable[Tenant] = (), keys: Iterable[ApiKey] = ()) -> None:
        """Hold what a configuration file declares.

        Raises:
            InvalidField: The tenants do not fit together.
        """
        self.declared = TenantBook(declared)
        self._declared_keys = {key.id: key for key in keys}
        self.is_complete = True
        """False from when it is to be filled from a store until that was read once: who is not known here may
        be known there."""
        self.store = ""
        self.version = 0
        self.mark = ""
        self._tenants: dict[TenantId, Tenant] = {}
        self._keys: dict[str, ApiKey] = {}
        self.book = self.declared
        self.keys: Mapping[str, ApiKey] = self._declared_keys
        self._revocations = Revocations()
        self._reopened: dict[str, ApiKey] = {}
        """Keys as the store has them again, which were seen to have ended, or to end earlier."""
        self.bands: Bands | None = None
        """Those that the scheduler has; None before it was heard."""
        self.problems: list[str] = []
        """What of the store cannot be used, since the last change."""

    def is_declared(self, tenant: TenantId) -> bool:
        """Whether a file declares it, so that it cannot be changed."""
        return tenant in self.declared

    def is_declared_key(self, key_id: str) -> bool:
        """Whether a file declares this key."""
        return key_id in self._declared_keys

    def set_bands(self, bands: Bands) -> None:
        """Take the scheduler's bands: whose name is none of them is served in the last one."""
        if bands != self.bands:
            self.bands, self.problems = bands, []
            self.declared = TenantBook(self.declared, bands)
            self._refresh()

    def keys_of(self, tenant: TenantId) -> list[ApiKey]:
        return [key for key in self.keys.values() if key.tenant == tenant]

    def held(self) -> list[Change]:
        """Return what makes an empty store hold what this holds of it, without what could not be read."""
        tenants = [
            Change(kind=Kind.TENANT, id=one.id, tenant=one.id, before=None, after=tenant_to_document(one))
            for one in self._tenants.values()
        ]
        keys = [
            Change(kind=Kind.KEY, id=one.id, tenant=one.tenant, before=None, after=key_to_document(one))
            for one in self._keys.values()
        ]
        return [*tenants, *keys]

    def saw(self, change: Change) -> None:
        """Take note of a change that was made: what it ends is ended here from now on."""
        if change.kind is Kind.KEY:
            self._revocations.saw(change.id, change.after)
            if (key := self._keys.pop(change.id, None)) is not None:
                self._put_key(key)
                self.keys = {**self._keys, **self._declared_keys}

    def revocations_lost(self) -> list[Change]:
        """Return what ends in the store the keys that it has opened again."""
        return [
            Change(
                kind=Kind.KEY,
                id=stored.id,
                tenant=stored.tenant,
                before=key_to_document(stored),
                after=None if stored.id not in self._keys else key_to_document(self._keys[stored.id]),
            )
            for stored in self._reopened.values()
        ]

    def replace(self, stored: Stored) -> None:
        """Take a store's whole state."""
        self.problems = []
        self.store, self.version, self.mark = stored.store, stored.version, stored.mark
        self._tenants = {}
        self._keys = {}
        self._reopened = {}
        for name, document in stored.tenants.items():
            self._put(Kind.TENANT, name, document)
        for name, document in stored.keys.items():
            self._put(Kind.KEY, name, document)
        self._refresh()

    def apply(self, entries: Sequence[Entry]) -> None:
        """Take the changes after `version`, in order."""
        if not entries:
            return
        self.problems = []
        for entry in entries:
            assert entry.version == self.version + 1, "a change was left out"
            self.version, self.mark = entry.version, entry.mark
            self.saw(entry.change)
            self._put(entry.change.kind, entry.change.id, entry.change.after)
        self._refresh()

    def _put(self, kind: Kind, name: str, document: Document | None) -> None:
        try:
            if kind is Kind.TENANT:
                self._tenants.pop(TenantId(name), None)
                if document is not None:
                    self._tenants[TenantId(name)] = tenant_from_document(document)
            else:
                self._keys.pop(name, None)
                self._reopened.pop(name, None)
                if document is not None:
                    self._put_key(key_from_document("", document))
        except InvalidField as error:
            self.problems.append(f"{kind} {name}: {error.message}")

    def _put_key(self, stored: ApiKey) -> None:
        key = self._revocations.applied_to(stored)
        if key is not None:
            self._keys[key.id] = key
        if key != stored:
            self._reopened[stored.id] = stored

    def _refresh(self) -> None:
        stored = {name: one for name, one in self._tenants.items() if name not in self.declared}
        self.problems += [f"tenant {name} is the file's" for name in self._tenants.keys() - stored.keys()]
        try:
            self.book = self.declared.replaced(stored)
        except InvalidField:
            self.book = self._fitting(stored)
        self.keys = {**self._keys, **self._declared_keys}
        if self.bands is not None:
            names = ", ".join(self.bands.names)
            self.problems += [
                f"tenant {one.id}: band {one.band} is none of {names}; it is served in the last one"
                for one in self.book
                if one.band not in self.bands
            ]

    def _fitting(self, stored: Mapping[TenantId, Tenant]) -> TenantBook:
        """Return the tenants that do fit together: one gateway's file may not suit the store."""
        book, left = self.declared, dict(stored)
        while left:
            # Parents first; who waits for one that never comes is left out.
            ready = [one for one in left.values() if one.parent is None or one.parent in book]
            for tenant in ready or left.values():
                try:
                    book = book.replaced({tenant.id: tenant})
                except InvalidField as error:
                    self.problems.append(f"tenant {tenant.id}: {error.message}")
            left = {name: one for name, one in left.items() if one not in ready} if ready else {}
        return book
