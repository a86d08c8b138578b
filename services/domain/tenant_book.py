"""All tenants as one consistent whole: who belongs to whom, and what a parent means to its children.

A child never exceeds its parent: the parent's counters are charged too (its scopes are in every account), its
bounds hold where they are tighter, and its KV pages are divided among its children. Immutable; knows neither
where tenants are kept nor what anybody has used.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from services.domain.bands import Bands
from services.domain.document_values import nearest_name, refused
from services.domain.errors import UnknownTenant
from services.domain.generation import RequestClass
from services.domain.ids import TenantId
from services.domain.limits import Account, Limits, Scope, ScopeKind
from services.domain.tenant import Tenant

MAX_DEPTH = 4
"""Generations in one organisation."""

_UNLIMITED = Limits()


class TenantBook:
    """Tenants by id."""

    def __init__(self, tenants: Iterable[Tenant] = (), bands: Bands | None = None) -> None:
        """Hold `tenants`, which must fit together.

        Args:
            bands: Their order; None: those that are there where none are configured.

        Raises:
            InvalidField: A parent that is unknown or a descendant, KV pages beyond the parent's, or a
                certificate that another one has.
        """
        self.bands = bands or Bands()
        self._tenants = {tenant.id: tenant for tenant in tenants}
        self._effective: dict[TenantId, Tenant] = {}
        self._holders: dict[str, TenantId] = {}
        for tenant in self._tenants.values():
            self._check_parents(tenant)
            self._hold(tenant)
        self._check_kv_pages()

    def __contains__(self, tenant: object) -> bool:
        return tenant in self._tenants

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def __len__(self) -> int:
        return len(self._tenants)

    def get(self, tenant: TenantId) -> Tenant | None:
        """Return a tenant as it was declared."""
        return self._tenants.get(tenant)

    def unknown(self, tenant: TenantId) -> UnknownTenant:
        """Return the error of a tenant that is not here; it names the nearest that is."""
        close = nearest_name(tenant, self._tenants)
        return UnknownTenant(
            f"there is no tenant {tenant!r}" + (f"; nearest known: {close}" if close else "")
        )

    def replaced(self, changes: Mapping[TenantId, Tenant | None]) -> "TenantBook":
        """Return the book with these tenants added, changed or (None) gone.

        Raises:
            InvalidField: They would not fit together any more.
        """
        tenants = {**self._tenants, **changes}
        return TenantBook((tenant for tenant in tenants.values() if tenant is not None), self.bands)

    def children(self, tenant: TenantId) -> list[Tenant]:
        return [one for one in self if one.parent == tenant]

    def lineage(self, tenant: TenantId) -> list[Tenant]:
        """Return a known tenant and its parents, the topmost last."""
        line = [self._tenants[tenant]]
        while (parent := line[-1].parent) is not None:
            line.append(self._tenants[parent])
        return line

    def effective(self, tenant: TenantId) -> Tenant | None:
        """Return a tenant as it is served: its own values within its parents' bounds."""
        if tenant not in self._tenants:
            return None
        if tenant not in self._effective:
            own, *parents = self.lineage(tenant)
            for parent in parents:
                own = _within(own, parent, self.bands)
            self._effective[tenant] = own
        return self._effective[tenant]

    def holder_of(self, certificate: str) -> TenantId | None:
        """Return whose callers show a certificate with this name."""
        return self._holders.get(certificate)

    def account(
        self,
        tenant: TenantId,
        *,
        request_class: RequestClass | None,
        model: str,
        key_id: str = "",
        key_limits: Limits = _UNLIMITED,
    ) -> Account:
        """Return all scopes that one request of a known tenant is charged to.

        Args:
            request_class: None leaves out the scopes of classes.
            model: The name it called the model by. Where that is an alias, limits of the model that it means
                hold as well: another name is no way around them.
            key_id: Empty without a key.
        """
        line = self.lineage(tenant)
        scopes = [Scope(kind=ScopeKind.TENANT, id=tenant, limits=line[0].limits)]
        scopes += [Scope(kind=ScopeKind.PARENT, id=one.id, limits=one.limits) for one in line[1:]]
        if key_id:
            scopes.append(Scope(kind=ScopeKind.KEY, id=f"{tenant}/{key_id}", limits=key_limits))
        if request_class is not None:
            scopes += [one for each in line for one in _of_class(each, request_class)]
        served = self.effective(tenant)
        assert served is not None
        names = dict.fromkeys((model, served.aliases.get(model, model)))
        scopes += [one for each in line for name in names for one in _of_model(each, name)]
        return Account(
            tenant=tenant,
            organisation=line[-1].id,
            scopes=tuple(scopes),
            allowance=line[0].outage_allowance,
            key_id=key_id,
        )

    def particular_scopes(self, tenant: TenantId) -> list[Scope]:
        """Return the scopes that hold for some requests of a known tenant only: of classes, and of the models
        that it may call."""
        line, served = self.lineage(tenant), self.effective(tenant)
        assert served is not None
        found = [one for each in line for kind in _CLASSES for one in _of_class(each, kind)]
        for each in line:
            for name in each.model_limits:
                if served.models is None or served.aliases.get(name, name) in served.models:
                    found += _of_model(each, name)
        return found

    def kv_caps(self) -> dict[TenantId, int]:
        """Return the KV pages each capped tenant may hold itself: what its children have is not its own."""
        caps = {tenant.id: tenant.kv_pages for tenant in self if tenant.kv_pages is not None}
        for tenant in self:
            if tenant.parent in caps and tenant.kv_pages is not None:
                caps[tenant.parent] -= tenant.kv_pages
        return caps

    def _check_parents(self, tenant: Tenant) -> None:
        seen = [tenant.id]
        parent = tenant.parent
        while parent is not None:
            if parent not in self._tenants:
                raise refused("parent", "a known tenant", parent, nearest_name(parent, self._tenants))
            if parent in seen:
                raise refused("parent", "no descendant of its own", tenant.parent, None)
            seen.append(parent)
            if len(seen) > MAX_DEPTH:
                rule = f"at most {MAX_DEPTH - 1} parents above {tenant.id}"
                raise refused("parent", rule, tenant.parent, seen[MAX_DEPTH - 2])
            parent = self._tenants[parent].parent

    def _hold(self, tenant: Tenant) -> None:
        for name in tenant.certificates:
            holder = self._holders.setdefault(name, tenant.id)
            if holder != tenant.id:
                rule = f"names that no other tenant has ({holder} has this one)"
                raise refused(f"{tenant.id}.certificates", rule, name, None)

    def _check_kv_pages(self) -> None:
        given: dict[TenantId, int] = {}
        for tenant in self:
            parent = None if tenant.parent is None else self._tenants[tenant.parent]
            if parent is None or parent.kv_pages is None:
                continue
            left = parent.kv_pages - given.get(parent.id, 0)
            # One page stays the parent's own: a cap of none cannot be told from no cap.
            if tenant.kv_pages is None or tenant.kv_pages >= left:
                rule = f"given and below {left} (what is left of {parent.id}'s {parent.kv_pages})"
                nearest = left - 1 if left > 1 else None
                raise refused(f"{tenant.id}.kv_pages", rule, tenant.kv_pages, nearest)
            given[parent.id] = given.get(parent.id, 0) + tenant.kv_pages


_CLASSES = (RequestClass.SHORT, RequestClass.LONG)


def _of_class(tenant: Tenant, request_class: RequestClass) -> list[Scope]:
    limits = tenant.long_class if request_class is RequestClass.LONG else tenant.short_class
    name = f"{tenant.id}/{request_class.name.lower()}"
    return [] if limits == _UNLIMITED else [Scope(kind=ScopeKind.CLASS, id=name, limits=limits)]


def _of_model(tenant: Tenant, model: str) -> list[Scope]:
    limits = tenant.model_limits.get(model)
    return [] if limits is None else [Scope(kind=ScopeKind.MODEL, id=f"{tenant.id}/{model}", limits=limits)]


def _within(own: Tenant, parent: Tenant, bands: Bands) -> Tenant:
    """Return `own` inside one parent's bounds."""
    models = own.models
    if parent.models is not None:
        models = parent.models if models is None else tuple(one for one in models if one in parent.models)
    return dataclasses.replace(
        own,
        band=max(own.band, parent.band, key=bands.rank),
        max_output_tokens=_least(own.max_output_tokens, parent.max_output_tokens),
        max_prompt_tokens=_least(own.max_prompt_tokens, parent.max_prompt_tokens),
        long_from_tokens=parent.long_from_tokens if own.long_from_tokens is None else own.long_from_tokens,
        models=models,
        aliases={**parent.aliases, **own.aliases},
        prices=parent.prices if own.prices is None else own.prices,
        degradation=parent.degradation if own.degradation is None else own.degradation,
    )


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
