"""Reports of usage: which days a period has, and that rows add up to the records."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.errors import InvalidField
from services.domain.ids import TenantId
from services.domain.usage import Split, UsageCounts, UsageRecord, date_of, days_of, grouped, splits_of

TODAY = datetime.date(2026, 3, 5)


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        ("", "2026-03-01", "2026-03-05"),
        ("month", "2026-03-01", "2026-03-05"),
        ("day", "2026-03-05", "2026-03-05"),
        ("2026-01-31..2026-02-01", "2026-01-31", "2026-02-01"),
        ("2025-01-01..2026-02-04", "2025-01-01", "2026-02-04"),
    ],
)
def test_a_period_has_both_its_ends(period: str, first: str, last: str) -> None:
    days = days_of(period, TODAY)
    assert (date_of(days[0]).isoformat(), date_of(days[-1]).isoformat()) == (first, last)


@pytest.mark.parametrize(
    "period", ["week", "2026-02-30..2026-03-01", "2026-03-02..2026-03-01", "2024-01-01..2026-01-01", ".."]
)
def test_another_period_is_refused_by_name(period: str) -> None:
    with pytest.raises(InvalidField, match="must be") as caught:
        days_of(period, TODAY)
    assert caught.value.detail.field == "period"


def test_an_unknown_split_is_refused_with_the_nearest() -> None:
    assert splits_of(["key", "day", "key"]) == (Split.KEY, Split.DAY)
    with pytest.raises(InvalidField, match="nearest valid: model"):
        splits_of(["models"])


records = st.lists(
    st.builds(
        UsageRecord,
        tenant=st.sampled_from([TenantId("a"), TenantId("b")]),
        day=st.integers(20_000, 20_070),
        key_id=st.sampled_from(["", "k"]),
        model=st.sampled_from(["tiny", "other"]),
        counts=st.builds(
            UsageCounts,
            requests=st.integers(0, 9),
            cost_nanos=st.integers(0, 10**18),
            refusals=st.dictionaries(st.sampled_from(["concurrency", "daily_budget"]), st.integers(1, 9)),
        ),
    ),
    max_size=20,
)


@given(records, st.lists(st.sampled_from(list(Split)), unique=True))
def test_rows_add_up_to_the_records_however_they_are_split(found: list[UsageRecord], by: list[Split]) -> None:
    rows = grouped(found, by)
    assert sum(row.counts.cost_nanos for row in rows) == sum(one.counts.cost_nanos for one in found)
    for name in ("concurrency", "daily_budget"):
        assert sum(row.counts.refusals.get(name, 0) for row in rows) == sum(
            one.counts.refusals.get(name, 0) for one in found
        )
    names = [tuple(row.names[split] for split in by) for row in rows]
    assert names == sorted(set(names))
    assert len(rows) == 1 or by
