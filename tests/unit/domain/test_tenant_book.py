"""Tenants fit together, and a child never exceeds its parent."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.errors import InvalidField
from services.domain.generation import RequestClass
from services.domain.ids import TenantId
from services.domain.limits import Limits, ScopeKind
from services.domain.tenant import Prices, Tenant
from services.domain.tenant_book import MAX_DEPTH, TenantBook

ACME, TEAM = TenantId("acme"), TenantId("team")


def a_tenant(name: str, parent: str | None = None, **fields: Any) -> Tenant:
    return Tenant(id=TenantId(name), parent=None if parent is None else TenantId(parent), **fields)


def test_an_account_lists_every_scope_of_the_whole_line() -> None:
    one, two, three = (Limits(max_concurrency=n) for n in (1, 2, 3))
    book = TenantBook(
        [
            a_tenant("acme", limits=two, long_class=three, model_limits={"small": one}),
            a_tenant("dept", "acme"),
            a_tenant("team", "dept", limits=one, long_class=two, model_limits={"small": three}),
        ]
    )
    account = book.account(
        TEAM, request_class=RequestClass.LONG, model="small", key_id="k1", key_limits=three
    )
    assert (account.tenant, account.organisation) == (TEAM, ACME)
    assert [(scope.kind, scope.id, scope.limits.max_concurrency) for scope in account.scopes] == [
        (ScopeKind.TENANT, "team", 1),
        (ScopeKind.PARENT, "dept", None),
        (ScopeKind.PARENT, "acme", 2),
        (ScopeKind.KEY, "team/k1", 3),
        (ScopeKind.CLASS, "team/long", 2),
        (ScopeKind.CLASS, "acme/long", 3),
        (ScopeKind.MODEL, "team/small", 3),
        (ScopeKind.MODEL, "acme/small", 1),
    ]


def test_a_models_limits_hold_by_whatever_name_it_is_called() -> None:
    one, two = (Limits(max_concurrency=n) for n in (1, 2))
    book = TenantBook(
        [
            a_tenant("acme", aliases={"mine": "other"}, model_limits={"big": two}),
            a_tenant("team", "acme", aliases={"mine": "big"}, model_limits={"big": one, "mine": two}),
        ]
    )

    def charged(model: str) -> list[str]:
        account = book.account(TEAM, request_class=None, model=model)
        return [scope.id for scope in account.scopes if scope.kind is ScopeKind.MODEL]

    assert charged("mine") == ["team/mine", "team/big", "acme/big"]
    assert charged("big") == ["team/big", "acme/big"], "each once, and not what holds for the alias alone"
    assert charged("other") == charged("") == []


def test_scopes_without_limits_are_left_out_but_for_who_pays() -> None:
    account = TenantBook([a_tenant("acme")]).account(ACME, request_class=RequestClass.SHORT, model="small")
    assert [scope.kind for scope in account.scopes] == [ScopeKind.TENANT]
    assert account.organisation == ACME


def test_a_tenant_is_served_within_its_parents_bounds() -> None:
    prices = Prices(output_per_million=1)
    book = TenantBook(
        [
            a_tenant(
                "acme",
                band="standard",
                max_output_tokens=100,
                models=("small", "large"),
                aliases={"fast": "small", "good": "large"},
                prices=prices,
                long_from_tokens=500,
            ),
            a_tenant(
                "team",
                "acme",
                band="interactive",
                max_output_tokens=200,
                max_prompt_tokens=50,
                models=("large", "other"),
                aliases={"fast": "large"},
            ),
        ]
    )
    served = book.effective(TEAM)
    assert served is not None
    assert served.band == "standard"
    assert (served.max_output_tokens, served.max_prompt_tokens, served.long_from_tokens) == (100, 50, 500)
    assert served.models == ("large",)
    assert served.aliases == {"fast": "large", "good": "large"}
    assert served.prices == prices
    assert book.effective(TenantId("gone")) is None


@pytest.mark.parametrize(
    ("tenants", "field", "rule"),
    [
        ([a_tenant("a", "acmee"), a_tenant("acme")], "parent", "a known tenant.*nearest valid: acme"),
        ([a_tenant("a", "b"), a_tenant("b", "a")], "parent", "no descendant"),
        (
            [a_tenant("t0"), *(a_tenant(f"t{n}", f"t{n - 1}") for n in range(1, MAX_DEPTH + 1))],
            "parent",
            "at most 3 parents.*nearest valid: t2",
        ),
        ([a_tenant("p", kv_pages=10), a_tenant("a", "p")], "a.kv_pages", "below 10"),
        (
            [a_tenant("p", kv_pages=10), a_tenant("a", "p", kv_pages=6), a_tenant("b", "p", kv_pages=4)],
            "b.kv_pages",
            "below 4 .*nearest valid: 3",
        ),
    ],
)
def test_tenants_that_do_not_fit_together_are_refused(tenants: list[Tenant], field: str, rule: str) -> None:
    with pytest.raises(InvalidField, match=rule) as caught:
        TenantBook(tenants)
    assert caught.value.detail.field == field


def test_changes_are_checked_as_a_whole() -> None:
    book = TenantBook([a_tenant("acme"), a_tenant("team", "acme")])
    with pytest.raises(InvalidField, match="a known tenant"):
        book.replaced({ACME: None})
    smaller = book.replaced({ACME: None, TEAM: a_tenant("team")})
    assert ACME not in smaller
    assert TEAM in smaller
    assert ACME in book


@settings(deadline=None)
@given(
    total=st.integers(1, 50),
    shares=st.lists(st.integers(1, 30), max_size=5),
)
def test_the_pages_of_a_family_never_exceed_its_parents_cap(total: int, shares: list[int]) -> None:
    children = [a_tenant(f"c{n}", "p", kv_pages=pages) for n, pages in enumerate(shares)]
    try:
        book = TenantBook([a_tenant("p", kv_pages=total), *children, a_tenant("free")])
    except InvalidField:
        assert sum(shares) >= total
        return
    caps = book.kv_caps()
    assert sum(caps.values()) == total
    assert all(pages >= 1 for pages in caps.values())
    assert TenantId("free") not in caps


def test_no_two_tenants_have_one_certificate() -> None:
    book = TenantBook([a_tenant("acme", certificates=("a", "b")), a_tenant("team", "acme")])
    assert book.holder_of("b") == ACME
    assert book.holder_of("c") is None
    with pytest.raises(InvalidField, match=r"team\.certificates: .*no other tenant has \(acme has") as caught:
        book.replaced({TEAM: a_tenant("team", "acme", certificates=("c", "b"))})
    assert caught.value.detail.field == "team.certificates"
    moved = book.replaced({ACME: a_tenant("acme"), TEAM: a_tenant("team", "acme", certificates=("b",))})
    assert (moved.holder_of("a"), moved.holder_of("b")) == (None, TEAM)
