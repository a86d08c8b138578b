"""Weights are between tenants: an organisation has the shares of its teams that wait, and bounds none."""

from collections.abc import Collection

import pytest

from scheduler.core.fair_queue import FairPolicy
from scheduler.core.share_queue import FairRules
from services.domain.ids import TenantId
from services.domain.tenant import Tenant
from services.domain.tenant_book import TenantBook
from tests.unit.scheduler.backlog import Backlog
from tests.unit.scheduler.backlog import Tenant as Waiting

ACME = TenantId("acme")
TEAMS = {"acme-a": 1.0, "acme-b": 1.0, "acme-c": 1.0}
"""Together thrice what their organisation weighs."""


def shares(waiting: Collection[str]) -> dict[str, float]:
    """Return the part of the service that each got of those that waited all the time."""
    teams = [Tenant(id=TenantId(name), parent=ACME, weight=weight) for name, weight in TEAMS.items()]
    book = TenantBook([Tenant(id=ACME, weight=1.0), *teams, Tenant(id=TenantId("solo"), weight=3.0)])
    backlog = Backlog(FairPolicy(FairRules(quantum=256.0)), seed=1)
    tenants = []
    for name in waiting:
        served = book.effective(TenantId(name))
        assert served is not None
        tenants.append(Waiting(name, weight=served.weight, prompts=(1, 64), outputs=(0, 8)))
        backlog.join(tenants[-1])
    for _ in range(1500):
        backlog.step()
    total = sum(one.service for one in tenants)
    return {one.name: one.service / total for one in tenants}


@pytest.mark.parametrize(
    ("waiting", "solo"),
    [
        (("solo", "acme-a"), 3 / 4),
        (("solo", "acme-a", "acme-b", "acme-c"), 3 / 6),
        (("solo", "acme", "acme-a", "acme-b", "acme-c"), 3 / 7),
    ],
)
def test_teams_share_by_their_own_weights_whatever_their_organisation_weighs(
    waiting: tuple[str, ...], solo: float
) -> None:
    got = shares(waiting)
    assert got["solo"] == pytest.approx(solo, abs=0.03)
    for name in waiting[1:]:
        assert got[name] == pytest.approx((1 - solo) / (len(waiting) - 1), abs=0.03)
