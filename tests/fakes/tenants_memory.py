"""A tenant log in memory, under the same contract suite as the one in Redis."""

import secrets
import time
from collections.abc import Mapping, Sequence

from gateway.core.directory import Change, Document, Entry, Kind, Stored
from services.domain.errors import DependencyDown, StaleChange


class MemoryTenantLog:
    """See `TenantLog`."""

    def __init__(self) -> None:
        self.is_down = False
        self.kv_caps: str | None = None
        self._store = ""
        self._entries: list[Entry] = []
        self._documents: dict[Kind, dict[str, Document]] = {Kind.TENANT: {}, Kind.KEY: {}}
        self._used: dict[str, float] = {}

    async def load(self) -> Stored:
        self._answer()
        return Stored(
            store=self._store,
            version=len(self._entries),
            mark=self._mark(),
            tenants=dict(self._documents[Kind.TENANT]),
            keys=dict(self._documents[Kind.KEY]),
        )

    async def since(self, store: str, version: int, mark: str) -> list[Entry] | None:
        self._answer()
        is_known = version <= len(self._entries) and self._mark(version) == mark
        return self._entries[version:] if store == self._store and is_known else None

    async def commit(
        self,
        changes: Sequence[Change],
        *,
        who: str,
        store: str,
        version: int,
        mark: str,
        kv_caps: str | None = None,
    ) -> list[Entry]:
        self._answer()
        if (store, version, mark) != (self._store, len(self._entries), self._mark()):
            raise StaleChange("somebody else has changed tenants or keys meanwhile")
        self._store = store or secrets.token_hex(8)
        at, mark, made = round(time.time(), 3), secrets.token_hex(8), []
        for change in changes:
            documents = self._documents[change.kind]
            if change.after is None:
                documents.pop(change.id, None)
                self._used.pop(change.id, None)
            else:
                documents[change.id] = change.after
            made.append(Entry(version=len(self._entries) + 1, mark=mark, who=who, at=at, change=change))
            self._entries.append(made[-1])
        self.kv_caps = kv_caps or self.kv_caps
        return made

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Entry]:
        self._answer()
        entries = self._entries if before is None else self._entries[: before - 1]
        return entries[::-1][:limit]

    async def note_use(self, used: Mapping[str, float]) -> None:
        self._answer()
        self._used |= {key: float(round(at)) for key, at in used.items()}

    async def last_used(self, keys: Sequence[str]) -> dict[str, float]:
        self._answer()
        return {key: self._used[key] for key in keys if key in self._used}

    def _mark(self, version: int | None = None) -> str:
        """Return the mark of the change that led to `version`, or of the last one."""
        entries = self._entries if version is None else self._entries[:version]
        return entries[-1].mark if entries else ""

    def _answer(self) -> None:
        if self.is_down:
            raise DependencyDown("the store does not answer")
