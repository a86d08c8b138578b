"""An offline checker: computes every limit again from what the store did, and finds what went beyond one.

    every request      is judged by limits that its tenant had at most `grace_s` before, at all its scopes;
                       no choice, bucket, day, month or length goes beyond them
    every refusal      has a limit that the request would have gone beyond, so nothing here is lenient
    every reservation  ends once; none before its lease does, and none comes back after it was settled

An edit counts for a bucket from the first request on that is judged by it: before, the store cannot know of
it, and refills at the old rate. Pure: knows no store, reads no clock. What a request got without the store
(its outage policy) is not in the log, and a request renewed that never was admitted is a finding.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.tenants.audit_counters import Counters, Period, amounts_of
from bench.tenants.audit_events import Asked, Bounds, Edited, Event, Expired, Renewed, Settled
from gateway.core.keys import ApiKey
from services.domain.ids import TenantId
from services.domain.limits import Limits
from services.domain.tenant import Tenant


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    kind: str
    where: str
    """Scope or tenant."""
    request: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Version:
    """All tenants and keys between two edits."""

    at_ms: int
    tenants: Mapping[TenantId, Tenant]
    keys: Mapping[str, ApiKey]

    def lineage(self, tenant: TenantId) -> list[Tenant]:
        line = [self.tenants[tenant]]
        while (parent := line[-1].parent) is not None:
            line.append(self.tenants[parent])
        return line

    def knows(self, asked: Asked) -> bool:
        return asked.tenant in self.tenants and (not asked.key_id or asked.key_id in self.keys)

    def bounds(self, asked: Asked) -> dict[str, Bounds]:
        """Return the bounds of every scope that a request has to be charged to."""
        line = self.lineage(asked.tenant)
        limits = {f"tenant/{line[0].id}": line[0].limits}
        limits |= {f"parent/{one.id}": one.limits for one in line[1:]}
        if asked.key_id:
            limits[f"key/{asked.tenant}/{asked.key_id}"] = self.keys[asked.key_id].limits
        thresholds = (one.long_from_tokens for one in line if one.long_from_tokens is not None)
        # The nearest parent's alias holds; a request counts for the model that its name means as well.
        meant = next((one.aliases[asked.model] for one in line if asked.model in one.aliases), asked.model)
        is_long = asked.prompt_tokens >= next(thresholds, math.inf)
        for one in line:
            of_class = one.long_class if is_long else one.short_class
            if of_class != Limits():
                limits[f"class/{one.id}/{'long' if is_long else 'short'}"] = of_class
            for name in {asked.model, meant} & one.model_limits.keys():
                limits[f"model/{one.id}/{name}"] = one.model_limits[name]
        return {name: Bounds.of(one) for name, one in limits.items()}

    def beyond_caps(self, asked: Asked) -> list[str]:
        """Return which of the tenant's and its parents' caps a request's lengths go beyond."""
        found = []
        for one in self.lineage(asked.tenant) if self.knows(asked) else ():
            if one.max_prompt_tokens is not None and asked.prompt_tokens > one.max_prompt_tokens:
                found.append("prompt_cap")
            most = math.inf if one.max_output_tokens is None else asked.num_choices * one.max_output_tokens
            if asked.output_tokens > most:
                found.append("output_cap")
        return found


@dataclass(slots=True)
class Report:
    """What an audit saw."""

    findings: list[Finding] = field(default_factory=list)
    num_admitted: int = 0
    num_expired: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by every kind of limit that the request would have gone beyond."""
    scopes: Counter[str] = field(default_factory=Counter)
    """The same by the kind of scope whose limit it was."""
    versions: set[int] = field(default_factory=set)
    """Numbers of the versions that requests were judged by."""
    largest_lag_ms: int = 0
    """Most that limits had been replaced when a request was judged by them."""
    counters: dict[str, Counters] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    """Reservations at the end."""
    admitted: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Reservation:
    asked: Asked
    lease_until_ms: int
    periods: dict[str, Sequence[Period]]
    state: str = "open"


def check(events: Iterable[Event], *, grace_s: Callable[[str], float]) -> Report:
    """Compute everything again and report what must not be.

    Args:
        events: In the store's order, beginning with the tenants.
        grace_s: How long after an edit, by the store's clock, a request of this id may still be judged by
            what was before.
    """
    audit = _Audit(grace_s)
    for event in events:
        match event:
            case Edited():
                audit.edited(event)
            case Asked():
                audit.asked(event)
            case Renewed():
                audit.renewed(event)
            case Expired():
                audit.expired(event)
            case Settled():
                audit.settled(event)
    report = audit.report
    report.open = {name for name, one in audit.reservations.items() if one.state == "open"}
    return report


class _Audit:
    """State between two events."""

    def __init__(self, grace_s: Callable[[str], float]) -> None:
        self.report = Report()
        self.reservations: dict[str, _Reservation] = {}
        self._grace_s = grace_s
        self._ended: set[str] = set()
        """Settled without having been admitted."""
        self._versions: list[Version] = [Version(0, {}, {})]

    def edited(self, event: Edited) -> None:
        last = self._versions[-1]
        tenants = {**last.tenants, **event.tenants}
        keys = {**last.keys, **event.keys}
        self._versions.append(
            Version(
                event.at_ms,
                {name: one for name, one in tenants.items() if one is not None},
                {name: one for name, one in keys.items() if one is not None},
            )
        )

    def asked(self, event: Asked) -> None:
        report = self.report
        version, bounds = self._judged_by(event)
        amounts = amounts_of(event.prompt_tokens, event.output_tokens)
        beyond = [
            (name, kind)
            for name, one in bounds.items()
            for kind in self._counters(name).beyond(event.at_ms, one, event.num_choices, amounts)
        ]
        beyond += [(f"tenant/{event.tenant}", kind) for kind in version.beyond_caps(event)]
        if not event.admitted:
            report.refused.update({kind for _, kind in beyond})
            report.scopes.update({name.partition("/")[0] for name, _ in beyond})
            if not beyond:
                self._find("refused", event.tenant, event)
            return
        for name, kind in beyond:
            self._find(kind, name, event)
        if event.id in self.reservations or event.id in self._ended:
            self._find("admitted_again", event.tenant, event)
            return
        report.num_admitted += 1
        report.admitted.add(event.id)
        periods = self._periods(event, event.at_ms)
        held = _Reservation(event, event.at_ms + event.lease_ms, periods)
        self.reservations[event.id] = held
        self._hold(held, event.at_ms)

    def renewed(self, event: Renewed) -> None:
        held = self.reservations.get(event.id)
        if held is None or held.state == "settled":
            self._find("not_reserved", "", event)
            return
        if held.state == "expired":
            # It does run, so it counts again whatever the limits say: as one that begins now.
            held.state, held.periods = "open", self._periods(held.asked, event.at_ms)
            self._hold(held, event.at_ms)
        held.lease_until_ms = event.at_ms + event.lease_ms

    def expired(self, event: Expired) -> None:
        held = self.reservations.get(event.id)
        if held is None or held.state != "open":
            self._find("not_reserved", "", event)
            return
        if event.at_ms < held.lease_until_ms:
            self._find("lease_cut", held.asked.tenant, event)
        self.report.num_expired += 1
        held.state = "expired"
        self._give_back(held, event.at_ms, amounts_of(0, 0))

    def settled(self, event: Settled) -> None:
        held = self.reservations.get(event.id)
        used = amounts_of(event.prompt_tokens, event.output_tokens)
        if held is None:
            # Refused, or never asked for: it must have used nothing, and can never be admitted.
            self._ended.add(event.id)
            if used[1]:
                self._find("not_reserved", "", event)
            return
        if held.state == "settled":
            self._find("settled_twice", held.asked.tenant, event)
        elif held.state == "open":
            self._give_back(held, event.at_ms, used)
        else:
            # The store knows no more when it began.
            for name, periods in self._periods(held.asked, event.at_ms).items():
                self._counters(name).charge(event.at_ms, periods, used)
        held.state = "settled"

    # Inside

    def _judged_by(self, event: Asked) -> tuple[Version, Mapping[str, Bounds]]:
        """Return the newest version whose limits a request was judged by, and those limits."""
        replaced_ms, grace_ms = None, 1000 * self._grace_s(event.id)
        for number in range(len(self._versions) - 1, 0, -1):
            lag_ms = 0 if replaced_ms is None else event.at_ms - replaced_ms
            if lag_ms > grace_ms:
                break
            version = self._versions[number]
            if version.knows(event) and version.bounds(event) == event.bounds:
                self.report.versions.add(number)
                self.report.largest_lag_ms = max(self.report.largest_lag_ms, lag_ms)
                return version, event.bounds
            replaced_ms = version.at_ms
        if event.admitted:
            self._find("other_limits", event.tenant, event)
        newest = self._versions[-1]
        return newest, newest.bounds(event) if newest.knows(event) else event.bounds

    def _counters(self, name: str) -> Counters:
        return self.report.counters.setdefault(name, Counters())

    def _periods(self, asked: Asked, at_ms: int) -> dict[str, Sequence[Period]]:
        return {name: self._counters(name).periods(at_ms, one.zone) for name, one in asked.bounds.items()}

    def _hold(self, held: _Reservation, at_ms: int) -> None:
        asked = held.asked
        amounts = amounts_of(asked.prompt_tokens, asked.output_tokens)
        for name, periods in held.periods.items():
            counters = self._counters(name)
            counters.held += asked.num_choices
            counters.reserved += amounts[1]
            counters.charge(at_ms, periods, amounts)

    def _give_back(self, held: _Reservation, at_ms: int, used: Sequence[int]) -> None:
        asked = held.asked
        amounts = amounts_of(asked.prompt_tokens, asked.output_tokens)
        for name, periods in held.periods.items():
            counters = self._counters(name)
            counters.held -= asked.num_choices
            counters.reserved -= amounts[1]
            change = [now - before for now, before in zip(used, amounts, strict=True)]
            counters.charge(at_ms, periods, change)

    def _find(self, kind: str, where: str, event: Asked | Renewed | Expired | Settled) -> None:
        self.report.findings.append(Finding(kind, where, event.id, event.at_ms))
