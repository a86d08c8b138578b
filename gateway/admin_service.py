"""The gRPC door of platform teams: turns messages into documents and calls, records into messages.

Decides nothing but that nobody gets past without an admin's key, whichever address it comes from.
"""

import re
from typing import Any

import grpc
import orjson

from gateway.core.auth import Authenticator
from gateway.core.directory import Change, Document, Entry
from gateway.core.keys import ApiKey, KeyScope
from gateway.grpc_credentials import key_of
from gateway.key_admin import KeyAdmin
from gateway.stores.tenants import TenantLog
from gateway.tenant_admin import Record, TenantAdmin
from gateway.usage import UsageReports
from protos.admin.v1 import admin_pb2 as pb
from protos.admin.v1 import admin_pb2_grpc
from services.domain.document_values import a_whole
from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.tenant_document import limits_to_document, tenant_to_document
from services.rpc.tenant_messages import document_of, limits_to_pb, tenant_to_pb
from services.rpc.usage import report_to_pb, splits_from_pb

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
MAX_PAGE = 1000
_TOKEN = re.compile(r"[0-9]{1,15}")
"""The version of a change."""
USUAL_PAGE = 100

_SCOPES = {
    KeyScope.GENERATE: pb.KEY_SCOPE_GENERATE,
    KeyScope.USAGE: pb.KEY_SCOPE_USAGE,
    KeyScope.ADMIN: pb.KEY_SCOPE_ADMIN,
}
_SCOPES_BACK: dict[int, str] = {value: scope for scope, value in _SCOPES.items()}


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Adapter of `AdminService`."""

    def __init__(
        self,
        auth: Authenticator,
        tenants: TenantAdmin,
        keys: KeyAdmin,
        log: TenantLog,
        usage: UsageReports,
    ) -> None:
        self._auth = auth
        self._tenants = tenants
        self._keys = keys
        self._log = log
        self._usage = usage

    async def CreateTenant(
        self, request: pb.CreateTenantRequest, context: grpc.aio.ServicerContext
    ) -> pb.CreateTenantResponse:
        who = self._who(context)
        record = await self._tenants.create(document_of(request.tenant), who=who, dry_run=request.dry_run)
        return pb.CreateTenantResponse(record=_record_to_pb(record))

    async def GetTenant(
        self, request: pb.GetTenantRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetTenantResponse:
        self._who(context)
        record, effective = await self._tenants.get(TenantId(request.id))
        return pb.GetTenantResponse(
            record=_record_to_pb(record), effective=tenant_to_pb(tenant_to_document(effective))
        )

    async def ListTenants(
        self, request: pb.ListTenantsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListTenantsResponse:
        self._who(context)
        size = _page_size(request.page_size)
        parent = TenantId(request.parent) if request.parent else None
        records = await self._tenants.page(parent=parent, after=request.page_token, limit=size)
        return pb.ListTenantsResponse(
            records=map(_record_to_pb, records),
            next_page_token=records[-1].tenant.id if len(records) == size else "",
        )

    async def UpdateTenant(
        self, request: pb.UpdateTenantRequest, context: grpc.aio.ServicerContext
    ) -> pb.UpdateTenantResponse:
        who = self._who(context)
        record = await self._tenants.update(
            document_of(request.tenant),
            list(request.update_mask.paths),
            etag=request.etag,
            who=who,
            dry_run=request.dry_run,
        )
        return pb.UpdateTenantResponse(record=_record_to_pb(record))

    async def DeleteTenant(
        self, request: pb.DeleteTenantRequest, context: grpc.aio.ServicerContext
    ) -> pb.DeleteTenantResponse:
        who = self._who(context)
        changes = await self._tenants.delete(
            TenantId(request.id), etag=request.etag, who=who, dry_run=request.dry_run
        )
        return pb.DeleteTenantResponse(changes=map(_change_to_pb, changes))

    async def ApplyTenants(
        self, request: pb.ApplyTenantsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ApplyTenantsResponse:
        who = self._who(context)
        applied = await self._tenants.apply(
            [document_of(one) for one in request.tenants],
            delete_missing=request.delete_missing,
            etag=request.etag,
            who=who,
            dry_run=request.dry_run,
        )
        return pb.ApplyTenantsResponse(changes=map(_change_to_pb, applied.changes), etag=applied.etag)

    async def CreateKey(
        self, request: pb.CreateKeyRequest, context: grpc.aio.ServicerContext
    ) -> pb.CreateKeyResponse:
        who = self._who(context)
        fields: dict[str, Any] = {"tenant": request.tenant, "label": request.label}
        if request.scopes:
            fields["scopes"] = [_scope_from_pb(one) for one in request.scopes]
        if request.HasField("limits"):
            fields["limits"] = document_of(request.limits)
        lifetime_s = request.lifetime_s if request.HasField("lifetime_s") else None
        made = await self._keys.create(fields, lifetime_s=lifetime_s, who=who, dry_run=request.dry_run)
        secret = "" if request.dry_run else made.secret
        return pb.CreateKeyResponse(key=self._key_to_pb(made.key), secret=secret)

    async def ListKeys(
        self, request: pb.ListKeysRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListKeysResponse:
        self._who(context)
        size = _page_size(request.page_size)
        tenant = TenantId(request.tenant) if request.tenant else None
        found = await self._keys.page(tenant=tenant, after=request.page_token, limit=size)
        return pb.ListKeysResponse(
            keys=[self._key_to_pb(key, used) for key, used in found],
            next_page_token=found[-1][0].id if len(found) == size else "",
        )

    async def RotateKey(
        self, request: pb.RotateKeyRequest, context: grpc.aio.ServicerContext
    ) -> pb.RotateKeyResponse:
        who = self._who(context)
        rotated = await self._keys.rotate(
            request.id,
            overlap_s=request.overlap_s,
            lifetime_s=request.lifetime_s if request.HasField("lifetime_s") else None,
            who=who,
            dry_run=request.dry_run,
        )
        assert rotated.old is not None
        return pb.RotateKeyResponse(
            key=self._key_to_pb(rotated.key),
            secret="" if request.dry_run else rotated.secret,
            old_key=self._key_to_pb(rotated.old),
        )

    async def RevokeKey(
        self, request: pb.RevokeKeyRequest, context: grpc.aio.ServicerContext
    ) -> pb.RevokeKeyResponse:
        who = self._who(context)
        revoked = await self._keys.revoke(request.id, who=who, dry_run=request.dry_run)
        return pb.RevokeKeyResponse(key=self._key_to_pb(revoked))

    async def ListChanges(
        self, request: pb.ListChangesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListChangesResponse:
        self._who(context)
        size = _page_size(request.page_size)
        token = request.page_token
        if token and not _TOKEN.fullmatch(token):
            raise InvalidField("page_token", "must be one that an answer gave")
        entries = await self._log.audit(before=int(token) if token else None, limit=size)
        return pb.ListChangesResponse(
            changes=[_entry_to_pb(one) for one in entries if request.tenant in ("", one.change.tenant)],
            next_page_token=str(entries[-1].version) if len(entries) == size else "",
        )

    async def GetUsage(
        self, request: pb.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetUsageResponse:
        self._who(context)
        report = await self._usage.of_all_below(
            TenantId(request.tenant), period=request.period, by=splits_from_pb(request.by)
        )
        return pb.GetUsageResponse(report=report_to_pb(report))

    def _who(self, context: grpc.aio.ServicerContext) -> str:
        """Return the admin's name for the record.

        Raises:
            BadCredential: No valid key.
            NotYours: A key without the scope.
        """
        caller = self._auth.authenticate(key_of(context), from_loopback=False, scope=KeyScope.ADMIN)
        return f"{caller.tenant}/{caller.key_id}"

    def _key_to_pb(self, key: ApiKey, last_used: float | None = None) -> pb.Key:
        return pb.Key(
            id=key.id,
            tenant=key.tenant,
            label=key.label,
            scopes=sorted(_SCOPES[scope] for scope in key.scopes),
            limits=limits_to_pb(limits_to_document(key.limits)),
            created_at_ms=round(key.created_at * 1000),
            expires_at_ms=_ms(key.expires_at),
            last_used_ms=_ms(last_used),
            declared=self._keys.is_declared(key.id),
        )


def _record_to_pb(record: Record) -> pb.TenantRecord:
    return pb.TenantRecord(
        tenant=tenant_to_pb(tenant_to_document(record.tenant)),
        etag=record.etag,
        declared=record.is_declared,
    )


def _entry_to_pb(entry: Entry) -> pb.Change:
    message = _change_to_pb(entry.change)
    message.version, message.who, message.at_ms = entry.version, entry.who, round(entry.at * 1000)
    return message


def _change_to_pb(change: Change) -> pb.Change:
    return pb.Change(
        kind=change.kind,
        id=change.id,
        tenant=change.tenant,
        before=_shown(change.before),
        after=_shown(change.after),
    )


def _shown(document: Document | None) -> str:
    """Return a document as JSON, without what a key is recognised by."""
    if document is None:
        return ""
    shown = {name: value for name, value in document.items() if name != "digest"}
    return orjson.dumps(shown, option=orjson.OPT_SORT_KEYS).decode()


def _scope_from_pb(value: int) -> str:
    return _SCOPES_BACK.get(value, f"number {value}")


def _page_size(asked: int) -> int:
    size: int = a_whole(1, MAX_PAGE)("page_size", asked) if asked else USUAL_PAGE
    return size


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
