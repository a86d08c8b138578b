"""Which names of smaller models an edit may bring: those that can serve, and no way back."""

import pytest

from gateway.core.smaller_models import check_smaller_models
from services.domain.degradation import Degradation
from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook

ORG, TEAM, STRANGER = TenantId("org"), TenantId("team"), TenantId("stranger")
KNOWN = ("large", "middle", "small")


def a_book(ladder: dict[str, str], *, of: TenantId = TEAM) -> TenantBook:
    """An organisation with an alias, a team with another, and a stranger with a third."""
    policy = Degradation(smaller_models=ladder)
    return TenantBook(
        Tenant(id=name, parent=parent, aliases=aliases, degradation=policy if name == of else None)
        for name, parent, aliases in (
            (ORG, None, {"usual": "large"}),
            (TEAM, ORG, {"cheap": "small"}),
            (STRANGER, None, {"theirs": "small"}),
        )
    )


def check(ladder: dict[str, str], *, before: dict[str, str] | None = None, **how: TenantId) -> None:
    of = how.get("of", TEAM)
    check_smaller_models(of, a_book(before or {}, of=of), a_book(ladder, of=of), KNOWN)


@pytest.mark.parametrize(
    "ladder",
    [
        {"large": "small"},
        {"large": "cheap"},
        {"usual": "small"},
        {"usual": "cheap", "middle": "small"},
        {"large": "middle", "middle": "small"},
    ],
)
def test_models_and_aliases_of_the_tenant_and_its_parents_are_taken(ladder: dict[str, str]) -> None:
    check(ladder)


def test_a_parents_ladder_may_name_what_only_its_children_call_so() -> None:
    check({"large": "cheap"}, of=ORG)


@pytest.mark.parametrize(
    ("ladder", "field", "nearest"),
    [
        ({"large": "smal"}, "team.degradation.smaller_models.large", "small"),
        ({"larg": "small"}, "team.degradation.smaller_models", "large"),
        ({"large": "cheep"}, "team.degradation.smaller_models.large", "cheap"),
        ({"large": "theirs"}, "team.degradation.smaller_models.large", None),
        ({"large": "small", "middle": "zzz"}, "team.degradation.smaller_models.middle", None),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_nearest_that_something_has(
    ladder: dict[str, str], field: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidField, match="a model that is known here, or an alias") as caught:
        check(ladder)
    assert (caught.value.detail.field, caught.value.detail.metadata.get("nearest")) == (field, nearest)


def test_what_was_named_before_stays_though_its_model_is_gone() -> None:
    check({"large": "gone", "middle": "small"}, before={"large": "gone"})
    with pytest.raises(InvalidField, match=r"smaller_models\.middle"):
        check({"large": "gone", "middle": "gone"}, before={"large": "gone"})


def test_where_nobody_knows_any_model_every_name_is_taken() -> None:
    check_smaller_models(TEAM, a_book({}), a_book({"one": "other"}), ())


@pytest.mark.parametrize(
    "ladder",
    [
        {"large": "small", "small": "large"},
        {"large": "middle", "middle": "small", "small": "large"},
        {"usual": "cheap", "small": "large"},
    ],
)
def test_a_ladder_that_leads_back_is_refused_through_aliases_too(ladder: dict[str, str]) -> None:
    with pytest.raises(InvalidField, match="does not lead back"):
        check(ladder)


def test_a_ladder_that_leads_into_a_ring_is_refused_for_the_ring_alone() -> None:
    ring = {"middle": "small", "small": "middle"}
    check({"large": "small"} | ring, before=ring)
