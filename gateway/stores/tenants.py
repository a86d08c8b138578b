"""Where tenants and keys are kept: documents, and the audit stream of their changes.

`TenantLog` is what the gateway knows, `RedisTenantLog` keeps it in Redis under one hash tag. Knows documents;
what they mean and whether they may be is not known here. Prompts, outputs and keys never come here: of a key
there is its digest.
"""

import secrets
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

import orjson

from gateway.core.directory import Change, Document, Entry, Kind, Stored
from services.chassis.redis import RedisStore, Script
from services.domain.errors import StaleChange
from services.domain.ids import TenantId
from services.domain.tenant_keys import HEAD_KEY, KV_CAPS_KEY

LIMIT_S = 2.0
"""Limit of one call: no request waits for it."""
MAX_ENTRIES = 500
"""Most changes read in one call."""
_TAG = HEAD_KEY.rpartition(":")[0]
TENANTS_KEY, KEYS_KEY, AUDIT_KEY, USED_KEY = (
    f"{_TAG}:{name}" for name in ("documents", "keys", "audit", "used")
)
_HEAD = ("HMGET", HEAD_KEY, "store", "version", "mark")


class TenantLog(Protocol):
    """Every implementation passes the same contract suite.

    Raises:
        DependencyDown: Any call, when the store does not answer.
    """

    async def load(self) -> Stored:
        """Return everything."""
        ...

    async def since(self, store: str, version: int, mark: str) -> list[Entry] | None:
        """Return the changes after `version`, oldest first; None: they are not known, so load anew.

        Args:
            mark: Of the change that led to `version`. The store has another one there, or none, when it was
                put back to an earlier state (a failover, an older file) and has gone another way since.
        """
        ...

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
        """Make all changes or none.

        Args:
            store, version, mark: The state that the changes were made from.
            kv_caps: What the kvmanager is to enforce from now on; None leaves it.

        Raises:
            StaleChange: The store is at another version by now.
        """
        ...

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Entry]:
        """Return changes, newest first, from below version `before` on."""
        ...

    async def note_use(self, used: Mapping[str, float]) -> None:
        """Note when keys were used last, in seconds since 1970."""
        ...

    async def last_used(self, keys: Sequence[str]) -> dict[str, float]:
        """Return when keys were used last, as far as it was noted."""
        ...


class RedisTenantLog:
    """See `TenantLog`."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis
        self._script = Script(resources.files(__package__).joinpath("tenants.lua").read_text("utf-8"))

    async def load(self) -> Stored:
        # The head first: what is newer than it comes again with the changes, which is harmless.
        head, tenants, keys = await self._redis.pipeline(
            [_HEAD, ("HGETALL", TENANTS_KEY), ("HGETALL", KEYS_KEY)],
            limit_s=LIMIT_S,
        )
        store, version, mark = _head(head)
        if not store:
            return Stored()
        return Stored(
            store=store, version=version, mark=mark, tenants=_documents(tenants), keys=_documents(keys)
        )

    async def since(self, store: str, version: int, mark: str) -> list[Entry] | None:
        entries: list[Entry] = []
        while True:
            # From the last known one on: it must be there as it was.
            head, found = await self._redis.pipeline(
                [_HEAD, ("XRANGE", AUDIT_KEY, f"{version}-0", "+", "COUNT", MAX_ENTRIES)], limit_s=LIMIT_S
            )
            its_store, *newest = _head(head)
            if its_store != store:
                return None
            if newest == [version, mark]:
                return entries
            more = [_entry(one) for one in found]
            if version:
                if not more or (more[0].version, more[0].mark) != (version, mark):
                    return None  # Put back to an earlier state, or somebody trimmed the stream.
                more = more[1:]
            if not more or [one.version for one in more] != list(range(version + 1, version + 1 + len(more))):
                return None
            entries += more
            version, mark = more[-1].version, more[-1].mark

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
        fresh = secrets.token_hex(8)
        asked = {
            "store": store,
            "version": version,
            "mark": mark,
            "fresh": fresh,
            "who": who,
            "caps": kv_caps,
            "changes": [
                {
                    "kind": one.kind.value,
                    "id": one.id,
                    "tenant": one.tenant,
                    "before": _text(one.before),
                    "after": _text(one.after),
                }
                for one in changes
            ],
        }
        outcome, *rest = await self._redis.run_script(
            self._script,
            [HEAD_KEY, TENANTS_KEY, KEYS_KEY, AUDIT_KEY, USED_KEY, KV_CAPS_KEY],
            [orjson.dumps(asked)],
            limit_s=LIMIT_S,
        )
        if outcome == b"stale":
            raise StaleChange("somebody else has changed tenants or keys meanwhile")
        last, at = int(rest[1]), int(rest[2]) / 1000
        return [
            Entry(version=last - len(changes) + 1 + index, mark=fresh, who=who, at=at, change=change)
            for index, change in enumerate(changes)
        ]

    async def audit(self, *, before: int | None = None, limit: int = 100) -> list[Entry]:
        end = "+" if before is None else f"({before}-0"
        found = await self._redis.execute("XREVRANGE", AUDIT_KEY, end, "-", "COUNT", limit, limit_s=LIMIT_S)
        return [_entry(one) for one in found]

    async def note_use(self, used: Mapping[str, float]) -> None:
        if used:
            pairs = [part for key, at in used.items() for part in (key, f"{at:.0f}")]
            await self._redis.execute("HSET", USED_KEY, *pairs, limit_s=LIMIT_S)

    async def last_used(self, keys: Sequence[str]) -> dict[str, float]:
        if not keys:
            return {}
        found = await self._redis.execute("HMGET", USED_KEY, *keys, limit_s=LIMIT_S)
        return {key: float(at) for key, at in zip(keys, found, strict=True) if at is not None}


def _head(reply: Sequence[bytes | None]) -> tuple[str, int, str]:
    store, version, mark = reply
    return (store or b"").decode(), int(version or 0), (mark or b"").decode()


def _documents(reply: Sequence[bytes]) -> dict[str, Document]:
    return {name.decode(): orjson.loads(data) for name, data in zip(reply[::2], reply[1::2], strict=True)}


def _entry(reply: Any) -> Entry:
    entry_id, flat = reply
    fields = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    change = Change(
        kind=Kind(fields["kind"].decode()),
        id=fields["id"].decode(),
        tenant=TenantId(fields["tenant"].decode()),
        before=_document(fields["before"]),
        after=_document(fields["after"]),
    )
    return Entry(
        version=int(entry_id.partition(b"-")[0]),
        mark=fields.get("mark", b"").decode(),
        who=fields["who"].decode(),
        at=int(fields["at"]) / 1000,
        change=change,
    )


def _text(document: Document | None) -> str:
    return "" if document is None else orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()


def _document(data: bytes) -> Document | None:
    document: Document | None = orjson.loads(data) if data else None
    return document
