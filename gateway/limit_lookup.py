"""How a caller stands at its limits, for answers that reserve nothing: errors, lists of models, own usage.

Asks the store for what reservations tell of their own accord. Counts and changes nothing, and no answer fails
for it: where nothing is limited, or the store does not answer, nothing is told.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from gateway.core.auth import Authenticator
from gateway.core.limit_status import (
    OTHERS_HEADER,
    LimitStatus,
    ScopeState,
    is_told,
    limit_status_of,
    others_text,
)
from gateway.core.request import Caller
from gateway.stores.quota import QuotaStore, ScopeUse
from services.domain.errors import BadCredential, DependencyDown
from services.domain.generation import RequestClass
from services.domain.limits import Scope, ScopeKind

MAX_OTHERS = 16
"""Scopes of other classes and models that one answer tells of."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What an answer is about, as far as it knows."""

    model: str = ""
    """The name that it was called by; empty: no model in particular."""
    request_class: RequestClass | None = None


NOTHING = Subject()


@dataclass(frozen=True, kw_only=True)
class LimitLookup:
    """See the module."""

    auth: Authenticator
    quota: QuotaStore

    async def headers_of(self, caller: Caller, about: Subject = NOTHING) -> Mapping[str, str]:
        """Return the headers (metadata) that tell how `caller` stands now."""
        return (await self.status_of(caller, about)).headers

    async def status_of(self, caller: Caller, about: Subject = NOTHING) -> LimitStatus:
        """Return how `caller` stands now: at what holds for `about`, and beside it at classes and models that
        another request of its would be of."""
        try:
            account = self.auth.account_of(caller, model=about.model, request_class=about.request_class)
            others = self._others(caller, about, {scope.name for scope in account.scopes})
            scopes = (*account.scopes, *others)
            if not any(is_told(scope.limits) for scope in scopes):
                return LimitStatus(soft_spent=0.0)
            states = states_of(await self.quota.use(replace(account, scopes=scopes)))
        except (BadCredential, DependencyDown):
            return LimitStatus()
        num_own = len(account.scopes)
        status = limit_status_of(account, states[:num_own])
        text = others_text(account, others, states[num_own:])
        return replace(status, headers={**status.headers, OTHERS_HEADER: text}) if text else status

    def _others(self, caller: Caller, about: Subject, own: Set[str]) -> list[Scope]:
        """Return scopes that may hold for what is not known of `about`."""
        unknown = {
            kind
            for kind, is_known in ((ScopeKind.MODEL, about.model), (ScopeKind.CLASS, about.request_class))
            if not is_known
        }
        found = [
            scope
            for scope in self.auth.particular_scopes_of(caller)
            if scope.kind in unknown and scope.name not in own and is_told(scope.limits)
        ]
        return found[:MAX_OTHERS]


def states_of(uses: Sequence[ScopeUse]) -> list[ScopeState]:
    """Return what a `LimitStatus` is made of."""
    return [
        ScopeState(
            left_requests=use.left_requests or 0,
            left_tokens=use.left_tokens or 0,
            left_prompt_tokens=use.left_prompt_tokens or 0,
            left_output_tokens=use.left_output_tokens or 0,
            num_leases=use.num_leases,
            day_charged=use.day_charged,
            day_spent=use.day_spent,
            month_charged=use.month_charged,
            month_spent=use.month_spent,
        )
        for use in uses
    ]
