"""What a tenant's `smaller_models` may say: names that can serve, and no way back to where it began.

Looks at what an edit brings, never at what was taken before: models come and go, and who named one that is
gone can still be edited. Knows names only, and says nothing of whether the tenant may call them
(`services.domain.tenant_document`).
"""

from collections.abc import Collection, Mapping

from services.domain.document_values import nearest_name, refused
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook


def check_smaller_models(
    tenant: TenantId, before: TenantBook, after: TenantBook, models: Collection[str]
) -> None:
    """Refuse what an edit lets a tenant name anew. A ladder holds for the tenant's children too, so aliases
    of its whole organisation are names.

    Args:
        before: Without the edit.
        after: With it; the tenant is there.
        models: Those that are known; none: nobody knows any yet, and every name is taken.

    Raises:
        InvalidField: A name that is neither a model nor an alias, or a ladder that leads back.
    """
    ladder, earlier = _ladder(after.get(tenant)), _ladder(before.get(tenant))
    new = {name: smaller for name, smaller in ladder.items() if earlier.get(name) != smaller}
    if not new:
        return
    organisation = after.lineage(tenant)[-1].id
    names = {*models}
    for one in after:
        if one.aliases and after.lineage(one.id)[-1].id == organisation:
            names.update(one.aliases)
    effective = after.effective(tenant)
    aliases = {} if effective is None else effective.aliases
    steps = {aliases.get(name, name): aliases.get(smaller, smaller) for name, smaller in ladder.items()}
    where = f"{tenant}.degradation.smaller_models"
    for name, smaller in new.items():
        for place, given in ((where, name), (f"{where}.{name}", smaller)):
            if models and given not in names:
                raise refused(
                    place, "a model that is known here, or an alias", given, nearest_name(given, names)
                )
        if _leads_back(aliases.get(name, name), steps):
            raise refused(f"{where}.{name}", "a model that does not lead back to this one", smaller, None)


def _ladder(tenant: Tenant | None) -> Mapping[str, str]:
    return {} if tenant is None or tenant.degradation is None else tenant.degradation.smaller_models


def _leads_back(start: str, steps: Mapping[str, str]) -> bool:
    seen, at = set[str](), steps.get(start)
    while at is not None and at != start and at not in seen:
        seen.add(at)
        at = steps.get(at)
    return at == start
