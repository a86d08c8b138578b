"""Tenants as documents: plain values by field name, as files, stores and messages hold them.

One reader for all of them: whatever is wrong is refused with the field, the rule and the nearest valid value,
and what nothing enforces yet is refused instead of kept silently. Fields at their default are left out when
written. Knows no file format.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from services.domain.currencies import CURRENCIES
from services.domain.degradation import Degradation
from services.domain.document_values import (
    Reader,
    a_name,
    a_number,
    a_table,
    a_text,
    a_whole,
    false_or_true,
    many_of,
    map_of,
    nearest_name,
    refused,
)
from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.limits import Allowance, Budget, Limits, Rate
from services.domain.tenant import Prices, Tenant

MAX_TOKENS = 10**15
MAX_COUNT = 10**6
MAX_PRICE = 1e6

NOT_YET = ("kv_pages_guaranteed", "kv_pages_cached", "kv_idle_ttl_s")
"""Fields that nothing enforces yet."""


def _rate(most: int) -> Reader:
    table = a_table(
        Rate, {"per_minute": a_whole(1, most), "burst": a_whole(1, most)}, required=("per_minute",)
    )
    number = a_whole(1, most)

    def read(where: str, value: object) -> Rate:
        if isinstance(value, Mapping):
            rate: Rate = table(where, value)
            return rate
        return Rate(per_minute=number(where, value))

    return read


def _budget(where: str, value: object) -> Budget:
    if isinstance(value, Mapping):
        budget: Budget = _BUDGET(where, value)
        return budget
    return Budget(tokens=_TOKENS(where, value))


def _band(where: str, value: object) -> str:
    # Which names there are is the scheduler's business: whoever edits tenants asks for those.
    return str(a_name(where, value)).lower()


_TOKENS = a_whole(1, MAX_TOKENS)
_BUDGET = a_table(
    Budget, {"tokens": _TOKENS, "hard": false_or_true, "warn_at": a_number(0.0, 1.0)}, required=("tokens",)
)
_LIMITS: dict[str, Reader] = {
    "max_concurrency": a_whole(1, MAX_COUNT),
    "requests_per_minute": _rate(MAX_COUNT),
    "tokens_per_minute": _rate(MAX_TOKENS),
    "prompt_tokens_per_minute": _rate(MAX_TOKENS),
    "output_tokens_per_minute": _rate(MAX_TOKENS),
    "daily": _budget,
    "monthly": _budget,
    "utc_offset_minutes": a_whole(-14 * 60, 14 * 60),
}
# Of tenants that were stored before, any: it is only shown, and they are served. See `check_currency`.
_PRICES: dict[str, Reader] = {"currency": a_text(8)} | {
    one.name: a_number(0.0, MAX_PRICE) for one in dataclasses.fields(Prices) if one.name != "currency"
}
read_limits: Reader = a_table(Limits, _LIMITS)
"""Limits by themselves, of a key for example."""
_TENANT: dict[str, Reader] = {
    "id": a_name,
    "name": a_text(128),
    "parent": a_name,
    "band": _band,
    "weight": a_number(0.001, 1000.0),
    "long_from_tokens": a_whole(1, 10**9),
    "short_class": read_limits,
    "long_class": read_limits,
    "model_limits": map_of(a_text(128, least=1), read_limits),
    "default_max_output_tokens": a_whole(1, 10**9),
    "max_output_tokens": a_whole(1, 10**9),
    "max_prompt_tokens": a_whole(1, 10**9),
    "models": many_of(a_text(128, least=1), least=1),
    "aliases": map_of(a_text(128, least=1), a_text(128, least=1)),
    "kv_pages": a_whole(1, 10**9),
    "certificates": many_of(a_text(256, least=1), least=1),
    "prices": a_table(Prices, _PRICES),
    "degradation": a_table(
        Degradation,
        {
            "cap_output_tokens": a_whole(1, 10**9),
            "cut_prompt_tokens": a_whole(1, 10**9),
            "smaller_models": map_of(a_text(128, least=1), a_text(128, least=1)),
            "budget_at": a_number(0.01, 100.0),
        },
    ),
    "outage_allowance": a_table(
        Allowance,
        {"max_concurrency": a_whole(1, MAX_COUNT), "tokens": _TOKENS},
        required=("max_concurrency", "tokens"),
    ),
}
_OPTIONAL_TABLES = ("prices", "degradation")
"""None is the parent's, which an empty table is not."""
FIELDS = (*_TENANT, *_LIMITS)
"""Every field of a tenant's document."""
_read_fields = a_table(dict, _TENANT | _LIMITS, required=("id",), not_yet=NOT_YET)


def tenant_from_document(document: Mapping[str, object]) -> Tenant:
    """Read one tenant.

    Raises:
        InvalidField: The first value that breaks a rule, an unknown field, or one that nothing enforces yet.
    """
    values: dict[str, Any] = _read_fields("", document)
    limits = {name: values.pop(name) for name in _LIMITS if name in values}
    tenant = Tenant(**values, limits=Limits(**limits))
    _check_between_fields(tenant)
    return tenant


def tenant_to_document(tenant: Tenant) -> dict[str, Any]:
    """Write one tenant; `tenant_from_document` reads it back as it was."""
    document: dict[str, Any] = {"id": tenant.id}
    for one in dataclasses.fields(Tenant):
        value = getattr(tenant, one.name)
        if one.name == "limits":
            document |= limits_to_document(value)
        elif one.name in _OPTIONAL_TABLES and value is not None:
            document[one.name] = _without_defaults(value)
        elif one.name not in ("id", *_OPTIONAL_TABLES) and value != _default_of(one):
            document[one.name] = _plain(value)
    return document


def limits_to_document(limits: Limits) -> dict[str, Any]:
    """Write limits; `read_limits` reads them back."""
    return _without_defaults(limits)


def _without_defaults(value: Any) -> dict[str, Any]:
    return {
        one.name: _plain(getattr(value, one.name))
        for one in dataclasses.fields(value)
        if getattr(value, one.name) != _default_of(one)
    }


def _default_of(field: "dataclasses.Field[Any]") -> object:
    """Return a field's default; MISSING, which no value equals, where it has none."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Rate) and value.burst is None:
        return value.per_minute
    if isinstance(value, Budget) and value == Budget(tokens=value.tokens):
        return value.tokens
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _without_defaults(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def check_currency(where: str, before: Tenant | None, after: Tenant) -> None:
    """Refuse a currency that an edit brings and ISO 4217 does not have; what was taken before may stay.

    Args:
        where: Its field.
        before: The tenant without the edit; None: it is new.

    Raises:
        InvalidField: As the module says.
    """
    given = "" if after.prices is None else after.prices.currency
    known = "" if before is None or before.prices is None else before.prices.currency
    if given not in ("", known) and given not in CURRENCIES:
        nearest = nearest_name(given.strip().upper(), CURRENCIES)
        raise refused(where, "an ISO 4217 code of three capital letters", given, nearest)


def _check_between_fields(tenant: Tenant) -> None:
    if tenant.parent == tenant.id:
        raise refused("parent", "another tenant", tenant.parent, None)
    most, usual = tenant.max_output_tokens, tenant.default_max_output_tokens
    # At its default it only yields to a smaller maximum.
    if most is not None and most < usual != Tenant(id=tenant.id).default_max_output_tokens:
        rule = f"at most max_output_tokens, {most}"
        raise refused("default_max_output_tokens", rule, usual, most)
    for alias, model in tenant.aliases.items():
        if model in tenant.aliases:
            raise refused(f"aliases.{alias}", "a model, not another alias", model, None)
        _check_known(f"aliases.{alias}", model, tenant.models)
    callable_names = None if tenant.models is None else (*tenant.models, *tenant.aliases)
    if tenant.degradation is not None:
        for model, smaller in tenant.degradation.smaller_models.items():
            where = f"degradation.smaller_models.{model}"
            _check_known(where, smaller, callable_names)
            if tenant.aliases.get(smaller, smaller) == tenant.aliases.get(model, model):
                raise refused(where, "another model than the one it stands for", smaller, None)
    for name in tenant.model_limits:
        _check_known(f"model_limits.{name}", name, callable_names)


def _check_known(where: str, name: str, known: tuple[str, ...] | None) -> None:
    if known is not None and name not in known:
        raise refused(where, "one of the models it may call", name, nearest_name(name, known))


def tenants_from_documents(documents: object) -> tuple[Tenant, ...]:
    """Read a list of tenants; an error names the tenant too.

    Raises:
        InvalidField: As `tenant_from_document`; also two of one id.
    """
    if not isinstance(documents, list):
        raise refused("tenants", "a list of tables", documents, None)
    tenants: dict[TenantId, Tenant] = {}
    for number, document in enumerate(documents):
        name = document.get("id", number) if isinstance(document, Mapping) else number
        try:
            tenant = tenant_from_document(document)
        except InvalidField as error:
            raise InvalidField(f"tenants[{name}].{error.detail.field}", _rule_of(error)) from error
        if tenant.id in tenants:
            raise refused(f"tenants[{name}].id", "used once", tenant.id, None)
        tenants[tenant.id] = tenant
    return tuple(tenants.values())


def _rule_of(error: InvalidField) -> str:
    return error.message.partition(": ")[2]
