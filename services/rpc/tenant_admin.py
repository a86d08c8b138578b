"""Calls of the gateway's admin door, as whoever holds an admin key.

Documents and plain values go in and come out. Knows one call each; pages are read to their end here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from protos.admin.v1 import admin_pb2 as pb
from protos.admin.v1 import admin_pb2_grpc
from services.chassis.errors import from_rpc_error
from services.domain.usage import Split, UsageReport
from services.rpc.tenant_messages import document_of, limits_to_pb, tenant_to_pb
from services.rpc.usage import report_from_pb, splits_to_pb

LIMIT_S = 20.0
PAGE = 500

T = TypeVar("T")
Document = Mapping[str, Any]

_SCOPES = {
    "generate": pb.KEY_SCOPE_GENERATE,
    "usage": pb.KEY_SCOPE_USAGE,
    "admin": pb.KEY_SCOPE_ADMIN,
}
SCOPES = tuple(_SCOPES)


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant as it is kept."""

    document: Document
    etag: str
    declared: bool
    """A configuration file of the gateway declares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """A key, without what opens. Times are seconds since 1970."""

    id: str
    tenant: str
    label: str
    scopes: tuple[str, ...]
    limits: Document
    created_at: float
    expires_at: float | None
    last_used: float | None
    declared: bool


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A new key, this once with what opens."""

    key: KeyView
    secret: str = field(repr=False)
    old: KeyView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    """One tenant or key before and after."""

    version: int
    who: str
    at: float
    kind: str
    id: str
    tenant: str
    before: Document | None
    after: Document | None


class TenantAdminClient:
    """See the module. Every call raises ServeError when it fails.

    Args:
        channel: To an admin port; closed by whoever made it.
    """

    def __init__(self, channel: grpc.aio.Channel, key: str | None) -> None:
        self._stub = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        self._metadata = () if key is None else (("authorization", f"Bearer {key}"),)

    async def create(self, document: Document, *, dry_run: bool = False) -> TenantView:
        request = pb.CreateTenantRequest(tenant=tenant_to_pb(document), dry_run=dry_run)
        return _tenant((await self._call(self._stub.CreateTenant, request)).record)

    async def get(self, tenant: str) -> tuple[TenantView, Document]:
        """Return a tenant as it is kept and as it is served."""
        answer = await self._call(self._stub.GetTenant, pb.GetTenantRequest(id=tenant))
        return _tenant(answer.record), document_of(answer.effective)

    async def tenants(self, parent: str = "") -> list[TenantView]:
        return await self._pages(
            lambda token: self._call(
                self._stub.ListTenants,
                pb.ListTenantsRequest(parent=parent, page_size=PAGE, page_token=token),
            ),
            lambda answer: [_tenant(one) for one in answer.records],
        )

    async def update(
        self, document: Document, fields: Sequence[str], *, etag: str, dry_run: bool = False
    ) -> TenantView:
        request = pb.UpdateTenantRequest(tenant=tenant_to_pb(document), etag=etag, dry_run=dry_run)
        request.update_mask.paths.extend(fields)
        return _tenant((await self._call(self._stub.UpdateTenant, request)).record)

    async def delete(self, tenant: str, *, dry_run: bool = False) -> list[ChangeView]:
        request = pb.DeleteTenantRequest(id=tenant, dry_run=dry_run)
        return [_change(one) for one in (await self._call(self._stub.DeleteTenant, request)).changes]

    async def apply(
        self, documents: Sequence[Document], *, delete_missing: bool, etag: str = "", dry_run: bool = False
    ) -> tuple[list[ChangeView], str]:
        """Return what differs, and the etag of everything before."""
        request = pb.ApplyTenantsRequest(
            tenants=map(tenant_to_pb, documents), delete_missing=delete_missing, etag=etag, dry_run=dry_run
        )
        answer = await self._call(self._stub.ApplyTenants, request)
        return [_change(one) for one in answer.changes], answer.etag

    async def create_key(
        self,
        tenant: str,
        *,
        label: str = "",
        scopes: Sequence[str] = (),
        limits: Document | None = None,
        lifetime_s: int | None = None,
        dry_run: bool = False,
    ) -> ShownKey:
        """Make a key; a dry run's has no secret, and neither it nor its id will be."""
        request = pb.CreateKeyRequest(
            tenant=tenant,
            label=label,
            scopes=[_SCOPES[one] for one in scopes],
            limits=limits_to_pb(limits) if limits else None,
            lifetime_s=lifetime_s,
            dry_run=dry_run,
        )
        answer = await self._call(self._stub.CreateKey, request)
        return ShownKey(_key(answer.key), answer.secret)

    async def keys(self, tenant: str = "") -> list[KeyView]:
        return await self._pages(
            lambda token: self._call(
                self._stub.ListKeys, pb.ListKeysRequest(tenant=tenant, page_size=PAGE, page_token=token)
            ),
            lambda answer: [_key(one) for one in answer.keys],
        )

    async def rotate_key(
        self, key_id: str, *, overlap_s: int, lifetime_s: int | None, dry_run: bool = False
    ) -> ShownKey:
        request = pb.RotateKeyRequest(id=key_id, overlap_s=overlap_s, lifetime_s=lifetime_s, dry_run=dry_run)
        answer = await self._call(self._stub.RotateKey, request)
        return ShownKey(_key(answer.key), answer.secret, _key(answer.old_key))

    async def revoke_key(self, key_id: str, *, dry_run: bool = False) -> KeyView:
        request = pb.RevokeKeyRequest(id=key_id, dry_run=dry_run)
        return _key((await self._call(self._stub.RevokeKey, request)).key)

    async def changes(self, tenant: str = "") -> list[ChangeView]:
        """Return the changes that were made, newest first."""
        return await self._pages(
            lambda token: self._call(
                self._stub.ListChanges, pb.ListChangesRequest(tenant=tenant, page_size=PAGE, page_token=token)
            ),
            lambda answer: [_change(one) for one in answer.changes],
        )

    async def usage(self, tenant: str, *, period: str, by: Sequence[Split]) -> UsageReport:
        """Return what a tenant and all below it used."""
        request = pb.GetUsageRequest(tenant=tenant, period=period, by=splits_to_pb(by))
        return report_from_pb((await self._call(self._stub.GetUsage, request)).report)

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=LIMIT_S)
        except grpc.aio.AioRpcError as exc:
            raise from_rpc_error(exc) from exc

    async def _pages(self, ask: Callable[[str], Any], items: Callable[[Any], list[T]]) -> list[T]:
        found: list[T] = []
        token = ""
        while True:
            answer = await ask(token)
            found += items(answer)
            token = answer.next_page_token
            if not token:
                return found


def _tenant(record: pb.TenantRecord) -> TenantView:
    return TenantView(document_of(record.tenant), record.etag, record.declared)


def _key(key: pb.Key) -> KeyView:
    names = {value: name for name, value in _SCOPES.items()}
    return KeyView(
        id=key.id,
        tenant=key.tenant,
        label=key.label,
        scopes=tuple(names.get(one, str(one)) for one in key.scopes),
        limits=document_of(key.limits),
        created_at=key.created_at_ms / 1000,
        expires_at=key.expires_at_ms / 1000 if key.HasField("expires_at_ms") else None,
        last_used=key.last_used_ms / 1000 if key.HasField("last_used_ms") else None,
        declared=key.declared,
    )


def _change(change: pb.Change) -> ChangeView:
    return ChangeView(
        version=change.version,
        who=change.who,
        at=change.at_ms / 1000,
        kind=change.kind,
        id=change.id,
        tenant=change.tenant,
        before=json.loads(change.before) if change.before else None,
        after=json.loads(change.after) if change.after else None,
    )
