"""How a caller stands at its limits, for answers that reserve nothing: errors, lists of models, own usage.

Asks the store for what reservations tell of their own accord. Counts and changes nothing, and no answer fails
for it: where nothing is limited, or the store does not answer, nothing is told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core.auth import Authenticator
from gateway.core.limit_status import LimitStatus, ScopeState, is_told, limit_status_of
from gateway.core.request import Caller
from gateway.stores.quota import QuotaStore, ScopeUse
from services.domain.errors import BadCredential, DependencyDown


@dataclass(frozen=True, kw_only=True)
class LimitLookup:
    """See the module."""

    auth: Authenticator
    quota: QuotaStore

    async def headers_of(self, caller: Caller) -> Mapping[str, str]:
        """Return the headers (metadata) that tell how `caller` stands now."""
        return (await self.status_of(caller)).headers

    async def status_of(self, caller: Caller) -> LimitStatus:
        """Return how `caller` stands now, as its tenant, parents and key."""
        try:
            account = self.auth.account_of(caller)
            if not any(is_told(scope.limits) for scope in account.scopes):
                return LimitStatus(soft_spent=0.0)
            uses = await self.quota.use(account)
        except (BadCredential, DependencyDown):
            return LimitStatus()
        return limit_status_of(account, states_of(uses))


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
