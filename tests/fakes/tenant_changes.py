"""Changes of tenants and keys as tests of a `TenantLog` make them."""

from gateway.core.directory import Change, Document, Kind
from gateway.stores.tenants import TenantLog
from services.domain.ids import TenantId

DIGEST = "0" * 64


def a_tenant(name: str, after: Document | None, before: Document | None = None) -> Change:
    return Change(kind=Kind.TENANT, id=name, tenant=TenantId(name), before=before, after=after)


def a_key(name: str, tenant: str, *, gone: bool = False) -> Change:
    document = {"id": name, "tenant": tenant, "digest": DIGEST}
    before, after = (document, None) if gone else (None, document)
    return Change(kind=Kind.KEY, id=name, tenant=TenantId(tenant), before=before, after=after)


async def commit(log: TenantLog, *changes: Change, who: str = "acme/k1") -> None:
    """Make changes from the newest state."""
    stored = await log.load()
    await log.commit(changes, who=who, store=stored.store, version=stored.version, mark=stored.mark)
