"""A tenant's document is read strictly: field, rule and nearest valid value; what is written reads back."""

import json
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.document_values import nearest_name
from services.domain.errors import InvalidField
from services.domain.generation import Usage
from services.domain.ids import TenantId
from services.domain.limits import Budget, Rate
from services.domain.tenant import NANO, Prices, Tenant
from services.domain.tenant_document import (
    FIELDS,
    NOT_YET,
    check_currency,
    tenant_from_document,
    tenant_to_document,
    tenants_from_documents,
)
from tests.unit.domain.tenants import tenants


@settings(max_examples=200, deadline=None)
@given(tenants)
def test_what_is_written_reads_back_also_through_json(tenant: Tenant) -> None:
    document = tenant_to_document(tenant)
    assert set(document) <= set(FIELDS)
    assert tenant_from_document(document) == tenant
    assert tenant_from_document(json.loads(json.dumps(document))) == tenant


def test_short_and_long_spellings_mean_the_same() -> None:
    tenant = tenant_from_document(
        {"id": "a", "band": "Batch", "tokens_per_minute": 5, "daily": {"tokens": 9, "hard": False}}
    )
    assert tenant.band == "batch"
    assert tenant.limits.tokens_per_minute == Rate(per_minute=5)
    assert tenant.limits.daily == Budget(tokens=9, hard=False)
    assert tenant_from_document({"id": "a", "tokens_per_minute": {"per_minute": 5}}).limits == (
        tenant_from_document({"id": "a", "tokens_per_minute": 5}).limits
    )


@pytest.mark.parametrize(
    ("fields", "where", "rule", "nearest"),
    [
        ({"id": "a}b"}, "id", "letters, digits", "a-b"),
        ({"max_concurrency": 0}, "max_concurrency", "from 1 to", "1"),
        ({"max_concurrency": True}, "max_concurrency", "a whole number", None),
        ({"max_concurrency": "many"}, "max_concurrency", "a whole number", None),
        ({"max_concurrency": 2.7}, "max_concurrency", "a whole number", "3"),
        ({"weight": -1}, "weight", "a number from 0.001", "0.001"),
        ({"weight": float("nan")}, "weight", "a number", None),
        ({"weight": float("inf")}, "weight", "a number", "1000.0"),
        ({"band": "a band"}, "band", "1 to 64 letters", "a-band"),
        ({"tokens_per_minute": {"burst": 3}}, "tokens_per_minute.per_minute", "must be given", None),
        ({"daily": {"tokens": 5, "warn_at": 80}}, "daily.warn_at", "from 0 to 1", "1.0"),
        ({"utc_offset_minutes": 900}, "utc_offset_minutes", "to 840", "840"),
        ({"parent": "a"}, "parent", "another tenant", None),
        ({"max_output_tokens": 9, "default_max_output_tokens": 10}, "default_max_output_tokens", "most", "9"),
        ({"models": ["big"], "aliases": {"x": "bog"}}, "aliases.x", "may call", "big"),
        ({"aliases": {"x": "y", "y": "z"}}, "aliases.x", "not another alias", None),
        ({"models": ["big"], "model_limits": {"small": {}}}, "model_limits.small", "may call", None),
        (
            {"aliases": {"fast": "big"}, "degradation": {"smaller_models": {"big": "fast"}}},
            "degradation.smaller_models.big",
            "another model",
            None,
        ),
        ({"long_class": {"daily": {"tokens": 0}}}, "long_class.daily.tokens", "from 1", "1"),
        ({"prices": {"output_per_million": -0.5}}, "prices.output_per_million", "from 0", "0.0"),
        ({"max_concurency": 5}, "max_concurency", "did you mean", "max_concurrency"),
    ],
)
def test_a_bad_value_is_refused_with_field_rule_and_nearest_valid_value(
    fields: dict[str, Any], where: str, rule: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidField, match=rule) as caught:
        tenant_from_document({"id": "a"} | fields)
    assert caught.value.detail.field == where
    assert caught.value.message.startswith(f"{where}: ")
    assert caught.value.detail.metadata.get("nearest") == nearest


def with_currency(currency: str) -> Tenant:
    return tenant_from_document({"id": "a", "prices": {"currency": currency}})


@pytest.mark.parametrize(
    ("given", "nearest"), [("eur", "EUR"), ("euros", "EUR"), ("EURO", "EUR"), ("€", None)]
)
def test_a_currency_that_iso_4217_does_not_have_is_refused_of_an_edit_alone(
    given: str, nearest: str | None
) -> None:
    for before in (None, Tenant(id=TenantId("a")), with_currency("EUR"), with_currency("XYZ")):
        with pytest.raises(InvalidField, match="ISO 4217") as caught:
            check_currency("prices.currency", before, with_currency(given))
        assert caught.value.detail.field == "prices.currency"
        assert caught.value.detail.metadata.get("nearest") == nearest
        check_currency("prices.currency", before, with_currency("USD"))
        check_currency("prices.currency", before, Tenant(id=TenantId("a")))
    check_currency("prices.currency", with_currency(given), with_currency(given))


@given(
    field=st.sampled_from(["max_concurrency", "kv_pages", "max_prompt_tokens", "utc_offset_minutes"]),
    value=st.integers() | st.floats(allow_nan=False),
)
def test_the_nearest_valid_value_of_a_number_is_valid(field: str, value: float) -> None:
    try:
        tenant_from_document({"id": "a", field: value})
    except InvalidField as error:
        tenant_from_document({"id": "a", field: int(error.detail.metadata["nearest"])})


@pytest.mark.parametrize("field", NOT_YET)
def test_what_nothing_enforces_is_refused_and_not_kept(field: str) -> None:
    with pytest.raises(InvalidField, match="not yet supported") as caught:
        tenant_from_document({"id": "a", field: 5})
    assert caught.value.detail.field == field


def test_an_error_in_a_list_names_the_tenant() -> None:
    with pytest.raises(InvalidField, match=r"tenants\[b\]\.weight: must be a number") as caught:
        tenants_from_documents([{"id": "a"}, {"id": "b", "weight": "heavy"}])
    assert caught.value.detail.field == "tenants[b].weight"
    with pytest.raises(InvalidField, match="used once"):
        tenants_from_documents([{"id": "a"}, {"id": "a"}])
    with pytest.raises(InvalidField, match="a list of tables"):
        tenants_from_documents({"a": {}})
    with pytest.raises(InvalidField, match=r"tenants\[0\]"):
        tenants_from_documents(["a"])


def test_a_refusal_shows_a_value_that_has_no_short_text() -> None:
    with pytest.raises(InvalidField, match=r"weight: must be a number .*, got an int"):
        tenant_from_document({"id": "a", "weight": int("f" * 5000, 16)})
    with pytest.raises(InvalidField, match=r"weight: must be a number .*, got \[\['x', 'x', "):
        tenant_from_document({"id": "a", "weight": [["x"] * 100] * 100})


def test_a_long_name_is_compared_with_nothing() -> None:
    near = "interactiv"
    assert nearest_name(near, ("interactive", "batch")) == "interactive"
    assert nearest_name(near * 10_000, ("interactive", near * 10_000 + "e")) is None


def test_costs_are_whole_billionths() -> None:
    prices = Prices(uncached_per_million=0.5, cached_per_million=0.05, output_per_million=2, page_hour=3.6)
    usage = Usage(prompt_tokens=3_000, cached_tokens=2_000, output_tokens=10)
    assert prices.cost(usage, page_ms=500) == 500_000 + 100_000 + 20_000 + 500_000
    assert Prices().cost(usage, 100) == 0


@given(
    prices=st.tuples(*[st.integers(0, 10**9).map(lambda n: n / 1000)] * 4),
    tokens=st.tuples(*[st.integers(0, 10**9)] * 3),
    page_ms=st.integers(0, 10**12),
)
def test_a_cost_is_the_exact_sum_rounded_once(
    prices: tuple[float, ...], tokens: tuple[int, ...], page_ms: int
) -> None:
    uncached, cached, output = tokens
    names = ("uncached_per_million", "cached_per_million", "output_per_million", "page_hour")
    cost = Prices(**dict(zip(names, prices, strict=True))).cost(
        Usage(prompt_tokens=uncached + cached, cached_tokens=cached, output_tokens=output), page_ms
    )
    with localcontext(prec=60):
        exact = [Decimal(repr(one)) for one in prices]
        units = sum(price * count for price, count in zip(exact, tokens, strict=False)) / 10**6
        assert cost == round((units + exact[3] * page_ms / 3_600_000) * NANO)
