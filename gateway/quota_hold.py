"""What one live request holds in the quota store, and by which limits it is judged while it runs.

Holds; neither reserves nor settles.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.stores.quota import Reservation
from services.domain.limits import Account


@dataclass(slots=True, kw_only=True)
class QuotaHold:
    """A reservation that was asked for: whatever became of the answer, it is settled in the end."""

    reservation: Reservation
    account_now: Callable[[], Account]
    """The account as its limits are now; raises BadCredential when the tenant is gone."""
    is_admitted: bool = False
    """Whether the request may run: only then its lease is renewed."""
