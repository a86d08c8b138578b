"""The audit's checker finds a violation of every kind of limit planted in a log made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.tenants.audit_check import Report, check
from bench.tenants.audit_events import Asked, Bounds, Edited, Event, Expired, Renewed, Settled
from gateway.core.keys import ApiKey
from services.domain.ids import TenantId
from services.domain.limits import Limits
from services.domain.tenant_document import read_limits, tenant_from_document

AT = 1_800_000_000_000
DAY_MS = 86_400_000
SCOPES = ("tenant/team", "parent/org", "key/team/k", "class/team/short", "model/team/chat")


def a_tenant(scope: str, limits: Mapping[str, Any], at: int = 0, **caps: int) -> Edited:
    """Return an organisation, its team and the team's key, with limits at one of the scopes."""
    parts = {name: limits if name == scope else {} for name in SCOPES}
    team = {"id": "team", "parent": "org", **parts["tenant/team"], **caps}
    if scope == "class/team/short":
        team["short_class"] = limits
    if scope == "model/team/chat":
        team["model_limits"] = {"chat": limits}
    org = {"id": "org", "long_from_tokens": 1000, **parts["parent/org"]}
    key = ApiKey(
        id="k", tenant=TenantId("team"), digest="0" * 64, limits=read_limits("", parts["key/team/k"])
    )
    tenants = {TenantId(str(one["id"])): tenant_from_document(one) for one in (org, team)}
    return Edited(at_ms=AT + at, tenants=tenants, keys={"k": key})


def asked(
    scope: str,
    limits: Mapping[str, Any],
    name: str = "r",
    *,
    at: int = 0,
    admitted: bool = True,
    n: int = 1,
    prompt: int = 10,
    output: int = 90,
) -> Asked:
    """Return a request that was judged by the limits of `a_tenant`."""
    names = [one for one in SCOPES if one == scope or ("class" not in one and "model" not in one)]
    own: Limits = read_limits("", limits)
    return Asked(
        at_ms=AT + at,
        id=name,
        admitted=admitted,
        tenant=TenantId("team"),
        key_id="k",
        model="chat",
        num_choices=n,
        prompt_tokens=prompt,
        output_tokens=output,
        bounds={one: Bounds.of(own if one == scope else Limits()) for one in names},
    )


def settled(name: str = "r", *, at: int = 0, prompt: int = 10, output: int = 0) -> Settled:
    return Settled(at_ms=AT + at, id=name, prompt_tokens=prompt, output_tokens=output)


def a_second(name: str) -> float:
    return 1.0


def kinds(*events: Event) -> list[str]:
    return [one.kind for one in check(events, grace_s=a_second).findings]


TIGHT: dict[str, Mapping[str, Any]] = {
    "concurrency": {"max_concurrency": 1},
    "requests": {"requests_per_minute": 1},
    "tokens": {"tokens_per_minute": {"per_minute": 60, "burst": 150}},
    "prompt_tokens": {"prompt_tokens_per_minute": {"per_minute": 6, "burst": 15}},
    "output_tokens": {"output_tokens_per_minute": {"per_minute": 60, "burst": 130}},
    "daily": {"daily": 150},
    "monthly": {"monthly": 150},
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", TIGHT)
def test_an_admission_beyond_a_limit_is_found_at_every_scope(kind: str, scope: str) -> None:
    limits = TIGHT[kind]
    first = (a_tenant(scope, limits), asked(scope, limits, "one"))
    report = check((*first, asked(scope, limits, "two")), grace_s=a_second)
    assert [(one.kind, one.where, one.request) for one in report.findings] == [(kind, scope, "two")]
    assert kinds(*first) == []
    refused = check((*first, asked(scope, limits, "two", admitted=False)), grace_s=a_second)
    assert refused.findings == []
    assert refused.refused == {kind: 1}


@pytest.mark.parametrize("kind", TIGHT)
def test_what_was_given_back_or_filled_up_may_be_taken_again(kind: str) -> None:
    scope, limits = SCOPES[0], TIGHT[kind]
    nothing = settled("one", prompt=0)
    begin = (a_tenant(scope, limits), asked(scope, limits, "one"))
    assert kinds(*begin, nothing, asked(scope, limits, "two")) == []
    # 50 tokens are missing, which take 50 s; five of the prompt's as long; a request a minute.
    kept = settled("one", output=90)
    for at, fits in ((49_000, kind == "concurrency"), (61_000, kind not in ("daily", "monthly"))):
        assert kinds(*begin, kept, asked(scope, limits, "two", at=at)) == ([] if fits else [kind])


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    scope, limits = SCOPES[0], TIGHT["tokens"]
    hour = 3_600_000
    log = [a_tenant(scope, limits), asked(scope, limits, "one"), settled("one", output=90)]
    log += [asked(scope, limits, "two", at=hour), asked(scope, limits, "three", at=hour)]
    assert kinds(*log) == ["tokens"]


def test_a_bucket_that_gets_back_what_was_not_used_is_not_fuller_than_its_burst() -> None:
    scope, limits = SCOPES[0], TIGHT["tokens"]
    minute = 60_000
    log = [a_tenant(scope, limits), asked(scope, limits, "one"), settled("one", at=3 * minute, prompt=0)]
    log += [asked(scope, limits, name, at=3 * minute) for name in ("two", "three")]
    assert kinds(*log) == ["tokens"]


@pytest.mark.parametrize(("zone", "begins"), [(0, 0), (120, -2), (-90, 1.5)])
def test_a_budget_begins_anew_at_the_zones_midnight(zone: int, begins: float) -> None:
    scope, limits = SCOPES[0], {**TIGHT["daily"], "utc_offset_minutes": zone}
    midnight = round((AT // DAY_MS + 2) * DAY_MS + begins * 3_600_000) - AT
    log = [a_tenant(scope, limits), asked(scope, limits, "one", at=midnight - 1000)]
    assert kinds(*log, asked(scope, limits, "two", at=midnight - 1)) == ["daily"]
    assert kinds(*log, asked(scope, limits, "two", at=midnight)) == []


@pytest.mark.parametrize(
    ("caps", "kind"), [({"max_prompt_tokens": 9}, "prompt_cap"), ({"max_output_tokens": 44}, "output_cap")]
)
def test_a_request_longer_than_its_tenants_cap_is_found(caps: Mapping[str, int], kind: str) -> None:
    scope: tuple[str, Mapping[str, Any]] = (SCOPES[0], {})
    assert kinds(a_tenant(*scope, **caps), asked(*scope, n=2)) == [kind]
    wider = {name: most + 1 for name, most in caps.items()}
    assert kinds(a_tenant(*scope, **wider), asked(*scope, n=2)) == []


def test_limits_that_were_replaced_long_ago_are_found() -> None:
    scope, old, new = SCOPES[0], {"max_concurrency": 9}, {"max_concurrency": 8}
    edits = (a_tenant(scope, old), a_tenant(scope, new, at=5000))
    assert kinds(*edits, asked(scope, old, at=5900)) == []
    assert kinds(*edits, asked(scope, old, at=6100)) == ["other_limits"]
    assert kinds(*edits, asked(scope, {"max_concurrency": 7}, at=5900)) == ["other_limits"]


@pytest.mark.parametrize("missing", SCOPES)
def test_a_request_that_is_not_charged_at_one_of_its_scopes_is_found(missing: str) -> None:
    whole = asked(missing, {"daily": 10**6})
    bounds = {name: one for name, one in whole.bounds.items() if name != missing}
    partial = Asked(
        at_ms=AT, id="r", admitted=True, tenant=whole.tenant, key_id="k", model="chat", bounds=bounds
    )
    assert kinds(a_tenant(missing, {"daily": 10**6}), partial) == ["other_limits"]


def test_a_call_by_an_alias_that_is_not_charged_to_the_model_is_found() -> None:
    scope, limits = "model/team/chat", {"daily": 10**6}
    edit = a_tenant(scope, limits)
    tenants = {name: replace(one, aliases={"mine": "chat"}) for name, one in edit.tenants.items()}
    charged = replace(asked(scope, limits), model="mine")
    evading = replace(charged, bounds={name: one for name, one in charged.bounds.items() if name != scope})
    assert kinds(replace(edit, tenants=tenants), charged) == []
    assert kinds(replace(edit, tenants=tenants), evading) == ["other_limits"]


def test_a_refusal_that_no_limit_explains_is_found() -> None:
    scope, limits = SCOPES[0], TIGHT["concurrency"]
    assert kinds(a_tenant(scope, limits), asked(scope, limits, admitted=False)) == ["refused"]


def test_a_lease_cut_short_is_found_and_what_runs_counts_again_once_it_is_renewed() -> None:
    scope, limits = SCOPES[0], TIGHT["concurrency"]
    begin = [a_tenant(scope, limits), asked(scope, limits, "one")]
    early, due = (Expired(at_ms=AT + at, id="one") for at in (29_999, 30_000))
    assert kinds(*begin, early) == ["lease_cut"]
    again = asked(scope, limits, "two", at=31_000)
    assert kinds(*begin, due, again) == []
    renewed = Renewed(at_ms=AT + 30_500, id="one")
    assert kinds(*begin, due, renewed, again) == ["concurrency"]
    assert kinds(*begin, renewed, Expired(at_ms=AT + 31_000, id="one")) == ["lease_cut"]


def test_what_is_settled_after_its_lease_is_charged_all_the_same() -> None:
    scope, limits = SCOPES[0], TIGHT["daily"]
    log = [a_tenant(scope, limits), asked(scope, limits, "one"), Expired(at_ms=AT + 30_000, id="one")]
    late = settled("one", at=40_000, output=90)
    assert kinds(*log, late, asked(scope, limits, "two", at=41_000)) == ["daily"]
    assert kinds(*log, asked(scope, limits, "two", at=41_000)) == []


def test_a_second_end_a_second_beginning_and_work_without_one_are_found() -> None:
    scope: tuple[str, Mapping[str, Any]] = (SCOPES[0], {})
    begin = (a_tenant(*scope), asked(*scope))
    assert kinds(*begin, settled(), settled()) == ["settled_twice"]
    assert kinds(*begin, settled(), asked(*scope)) == ["admitted_again"]
    assert kinds(*begin, settled(), Renewed(at_ms=AT, id="r")) == ["not_reserved"]
    assert kinds(a_tenant(*scope), settled(prompt=0), asked(*scope)) == ["admitted_again"]
    assert kinds(a_tenant(*scope), settled()) == ["not_reserved"]
    assert kinds(*begin, settled(), Expired(at_ms=AT, id="r")) == ["not_reserved"]


def test_what_never_ended_is_told() -> None:
    scope: tuple[str, Mapping[str, Any]] = (SCOPES[0], {})
    report: Report = check((a_tenant(*scope), asked(*scope, "one"), asked(*scope, "two")), grace_s=a_second)
    assert report.open == {"one", "two"}
    assert report.counters["parent/org"].held == 2
    assert report.counters["parent/org"].reserved == 200
