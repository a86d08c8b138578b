"""Tenants and keys for the audit: organisations of teams with every limit on, each with one that is tight.

Which limit is tight, and at which scope, goes round, so that all of them are met.
"""

from collections.abc import Mapping
from typing import Any

from gateway.core.keys import ApiKey
from services.domain.limits import Limits
from services.domain.tenant import Tenant
from services.domain.tenant_document import read_limits, tenant_from_document, tenant_to_document

Document = dict[str, Any]

TEAMS_EACH = 9
LONG_FROM = 120
WIDE: Document = {
    "max_concurrency": 200,
    "requests_per_minute": 10_000,
    "tokens_per_minute": {"per_minute": 1_000_000, "burst": 500_000},
    "prompt_tokens_per_minute": {"per_minute": 1_000_000, "burst": 500_000},
    "output_tokens_per_minute": {"per_minute": 1_000_000, "burst": 500_000},
    "daily": 10_000_000,
    "monthly": 10_000_000,
}
# Buckets fill so slowly that a run of minutes meets them as well.
TIGHT: tuple[Document, ...] = (
    {"max_concurrency": 2},
    {"requests_per_minute": {"per_minute": 6, "burst": 5}},
    {"tokens_per_minute": {"per_minute": 300, "burst": 900}},
    {"prompt_tokens_per_minute": {"per_minute": 150, "burst": 400}},
    {"output_tokens_per_minute": {"per_minute": 200, "burst": 600}},
    {"daily": 1000},
    {"monthly": 1200},
)
EDITABLE = (*WIDE, "short_class", "long_class", "model_limits", "max_prompt_tokens", "max_output_tokens")
CAPS: tuple[Document, ...] = ({"max_prompt_tokens": 150}, {"max_output_tokens": 100}, {})


def tenants(num_tenants: int, model: str) -> list[Tenant]:
    """Return organisations, each followed by its teams."""
    found: list[Tenant] = []
    for number in range(num_tenants):
        organisation, team = divmod(number, TEAMS_EACH + 1)
        tight = WIDE | TIGHT[number % len(TIGHT)]
        document: Document = {
            "id": f"org-{organisation}",
            "long_from_tokens": LONG_FROM,
            **rescaled(tight, TEAMS_EACH),
        }
        if team:
            where = number % 4
            document = {
                "id": f"team-{organisation}-{team}",
                "parent": f"org-{organisation}",
                "short_class": tight if where == 1 else WIDE,
                "long_class": tight if where == 1 else WIDE,
                "model_limits": {model: tight if where == 2 else WIDE},
                **(tight if where == 0 else WIDE),
                **CAPS[number % len(CAPS)],
            }
        found.append(tenant_from_document(document))
    return found


def key_of(number: int, tenant: Tenant) -> ApiKey:
    """Return the key of tenant `number`; nobody knows its secret."""
    limits: Limits = read_limits("limits", WIDE | TIGHT[number % len(TIGHT)] if number % 4 == 3 else WIDE)
    return ApiKey(id=f"key-{number}", tenant=tenant.id, digest=f"{number:064x}", limits=limits)


def edited(tenant: Tenant, factor: float) -> Document:
    """Return a tenant's document with every limit and cap times `factor`."""
    document = tenant_to_document(tenant)
    return document | rescaled({name: document[name] for name in EDITABLE if name in document}, factor)


def rescaled(limits: Mapping[str, Any], factor: float) -> Document:
    """Return limits, each times `factor`."""
    found: Document = {}
    for name, value in limits.items():
        if isinstance(value, Mapping):
            found[name] = rescaled(value, factor)
        else:
            found[name] = max(1, round(value * factor))
    return found
