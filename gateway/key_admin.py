"""The use case of whoever administers keys: make, list, rotate, revoke.

A key is shown once, by whoever makes it; what is kept is its record. Knows nothing of messages.
"""

import dataclasses
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.directory import Change, Document, Kind
from gateway.core.keys import (
    KEY_BYTES,
    MAX_TIME,
    ApiKey,
    digest_key,
    key_from_document,
    key_to_document,
    make_key,
)
from gateway.stores.tenants import TenantLog
from gateway.tenant_feed import Edit, TenantFeed
from services.domain.document_values import a_whole, refused
from services.domain.errors import UnknownKey
from services.domain.ids import TenantId

MAX_LIFETIME_S = 100 * 365 * 86_400
MAX_OVERLAP_S = 366 * 86_400


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is shown once."""

    key: ApiKey
    secret: str = dataclasses.field(repr=False)
    old: ApiKey | None = None
    """The one that it replaces, with its new end."""


class KeyAdmin:
    """See the module. Every method works on the newest state, or raises DependencyDown."""

    def __init__(
        self, feed: TenantFeed, log: TenantLog, server_key: bytes, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._feed = feed
        self._directory = feed.directory
        self._log = log
        self._server_key = server_key
        self._clock = clock

    async def create(
        self, fields: Document, *, lifetime_s: int | None, who: str, dry_run: bool = False
    ) -> NewKey:
        """Make a key.

        Args:
            fields: `tenant`, and what else of `ApiKey` its maker chooses.

        Raises:
            InvalidField: A field breaks a rule.
            UnknownTenant: There is none of that id.
        """
        made = self._make(fields, self._end(lifetime_s))

        def work_out() -> Edit:
            if made.key.tenant not in self._directory.book:
                raise self._directory.book.unknown(made.key.tenant)
            return Edit([_change(None, made.key)])

        await self._feed.change(work_out, who=who, dry_run=dry_run)
        return made

    async def page(
        self, *, tenant: TenantId | None, after: str, limit: int
    ) -> list[tuple[ApiKey, float | None]]:
        """Return up to `limit` keys by id, those after `after`, and when each was used last."""
        await self._feed.refresh()
        keys = [
            one
            for one in self._directory.keys.values()
            if one.id > after and (tenant is None or one.tenant == tenant)
        ]
        keys = sorted(keys, key=lambda one: one.id)[:limit]
        used = await self._log.last_used([one.id for one in keys])
        return [(one, used.get(one.id)) for one in keys]

    async def rotate(
        self, key_id: str, *, overlap_s: int, lifetime_s: int | None, who: str, dry_run: bool = False
    ) -> NewKey:
        """Make a key like another one, which opens for `overlap_s` more and never longer than before.

        Raises:
            UnknownKey: There is none of that id.
            InvalidField: A configuration file declares it, or a time breaks a rule.
        """
        overlap_s = a_whole(0, MAX_OVERLAP_S)("overlap_s", overlap_s)
        end, ends_at = self._end(lifetime_s), self._clock() + overlap_s
        rotated: NewKey | None = None

        def work_out() -> Edit:
            nonlocal rotated
            old = self._changeable(key_id)
            ending = dataclasses.replace(old, expires_at=min(ends_at, old.expires_at or MAX_TIME))
            kept = ("tenant", "scopes", "label", "limits")
            fields = {name: value for name, value in key_to_document(old).items() if name in kept}
            rotated = dataclasses.replace(self._make(fields, end), old=ending)
            return Edit([_change(old, ending), _change(None, rotated.key)])

        await self._feed.change(work_out, who=who, dry_run=dry_run)
        assert rotated is not None
        return rotated

    async def revoke(self, key_id: str, *, who: str, dry_run: bool = False) -> ApiKey:
        """Take a key away at once.

        Raises:
            UnknownKey: There is none of that id.
            InvalidField: A configuration file declares it.
        """
        revoked: ApiKey | None = None

        def work_out() -> Edit:
            nonlocal revoked
            revoked = self._changeable(key_id)
            return Edit([_change(revoked, None)])

        await self._feed.change(work_out, who=who, dry_run=dry_run)
        assert revoked is not None
        return revoked

    def is_declared(self, key_id: str) -> bool:
        """Whether a configuration file declares a key."""
        return self._directory.is_declared_key(key_id)

    def _make(self, fields: Document, expires_at: float | None) -> NewKey:
        secret, key_id = make_key(secrets.token_bytes(KEY_BYTES))
        document = dict(fields) | {
            "id": key_id,
            "digest": digest_key(self._server_key, secret),
            "created_at": round(self._clock(), 3),
            "expires_at": expires_at,
        }
        return NewKey(key_from_document("", document), secret)

    def _end(self, lifetime_s: int | None) -> float | None:
        if lifetime_s is None:
            return None
        lifetime: int = a_whole(1, MAX_LIFETIME_S)("lifetime_s", lifetime_s)
        return round(self._clock() + lifetime, 3)

    def _changeable(self, key_id: str) -> ApiKey:
        key = self._directory.keys.get(key_id)
        if key is None:
            raise UnknownKey(f"there is no key {key_id!r}")
        if self.is_declared(key_id):
            raise refused("id", "no key that a configuration file declares: change it there", key_id, None)
        return key


def _change(before: ApiKey | None, after: ApiKey | None) -> Change:
    key = after or before
    assert key is not None
    return Change(
        kind=Kind.KEY,
        id=key.id,
        tenant=key.tenant,
        before=None if before is None else key_to_document(before),
        after=None if after is None else key_to_document(after),
    )
