"""`quire top` makes rates of two looks, and shows as many tenants as there is room for."""

import dataclasses
import io
import re
from pathlib import Path

from rich.console import Console
from rich.table import Table

from services.commands.tenant_rates import Look, rates
from services.commands.top import Top, show
from services.rpc.fleet_status import QueueStatus, TenantStatus

NOBODY = TenantStatus(
    tenant="t",
    band="standard",
    weight=1.0,
    waiting=0,
    waiting_tokens=0,
    uncached_tokens=0,
    cached_tokens=0,
    output_tokens=0,
    service=0.0,
    degraded=(),
)
QUEUE = QueueStatus(
    term=1,
    waiting=3,
    waiting_tokens=96,
    oldest_wait_ms=1500,
    placed_total=0,
    rejected_total=0,
    num_gateways=1,
    workers=(),
    quarantine=(),
    degraded=("m/batch: cap_output",),
)


def a_tenant(name: str, output: int = 0, **changes: object) -> TenantStatus:
    values = {"tenant": name, "output_tokens": output, "service": 2.0 * output} | changes
    return dataclasses.replace(NOBODY, **values)  # type: ignore[arg-type]


def a_look(*tenants: TenantStatus, term: int = 1) -> Look:
    return Look(term=term, tenants=tenants, pages={})


def test_rates_are_of_the_time_between_and_those_with_most_come_first() -> None:
    before = a_look(a_tenant("a", 100), a_tenant("b", 100))
    now = a_look(a_tenant("a", 120), a_tenant("b", 160), a_tenant("new", 200), a_tenant("idle", waiting=1))
    rows = rates(before, now, seconds=2.0)
    assert [(row.tenant, row.tokens_per_s) for row in rows] == [
        ("new", 100.0),
        ("b", 30.0),
        ("a", 10.0),
        ("idle", 0.0),
    ]
    assert sum(row.share or 0.0 for row in rows) == 1.0
    assert {row.fair_share for row in rows} == {0.25}


def test_who_neither_got_nor_wants_anything_takes_nothing_of_the_others_due() -> None:
    before = a_look(a_tenant("a"), a_tenant("away", 50))
    rows = rates(before, a_look(a_tenant("a", 10), a_tenant("away", 50)), seconds=1.0)
    assert [(row.fair_share, row.share) for row in rows] == [(1.0, 1.0), (None, 0.0)]


def test_a_scheduler_that_began_anew_gives_no_negative_rates() -> None:
    before, now = a_look(a_tenant("a", 100)), a_look(a_tenant("a", 5), term=2)
    assert [row.tokens_per_s for row in rates(before, now, seconds=1.0)] == [5.0]
    again = a_look(a_tenant("a", 5))
    assert [row.tokens_per_s for row in rates(before, again, seconds=1.0)] == [5.0], "forgotten meanwhile"


def text_of(top: Top, most: int | None) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(show(top, most))
    return out.getvalue()


def test_a_screen_names_what_is_degraded_and_how_many_it_leaves_out() -> None:
    now = a_look(a_tenant("a", 30, degraded=("m: cap_output",)), a_tenant("b", 10, waiting=3))
    top = Top(every_s=1.0, queue=QUEUE, tenants=rates(a_look(a_tenant("a"), a_tenant("b")), now, 1.0))
    whole = text_of(top, None)
    assert "2 tenants, 40 tokens/s, 3 requests wait (oldest 1.5 s)" in whole
    assert "degraded   m/batch: cap_output" in whole
    assert [line.split()[0] for line in whole.splitlines()[-2:]] == ["a", "b"]
    assert "75 %" in whole
    short = text_of(top, 1)
    assert short.splitlines()[-1] == "and 1 more"


def test_the_screen_has_the_columns_that_the_page_explains() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tenants.md").read_text("utf-8")
    section = page.partition("## Who gets what now")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    told = [name.strip("`") for cell in cells for name in cell.split(", ")]
    top = Top(every_s=1.0, queue=QUEUE, tenants=rates(a_look(a_tenant("a")), a_look(a_tenant("a", 1)), 1.0))
    (table,) = (part for part in show(top).renderables if isinstance(part, Table))
    assert [column.header for column in table.columns] == ["tenant", "band", *told]
