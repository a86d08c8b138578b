"""What a worker keeps to of its tenants' slices, as it tells the kvmanager.

Pure values. A slice is the pages that a tenant may hold on one worker; who cuts them is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.domain.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceInForce:
    """One tenant's slice on one worker."""

    max_pages: int
    """The slice."""
    bound: int
    """Most pages the tenant can come to hold: `max_pages`, or more until the sequences end that were started
    under a larger slice. Then nothing new starts."""
    held: int
    """Pages held at that moment."""
    needs: int = 0
    """Slice without which the first of the tenant's waiting requests cannot finish; 0: none waits for it."""
    waited_s: float = 0.0
    """Seconds that this request has waited on the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesInForce:
    """All slices on one worker."""

    version: int = 0
    """Of the last slices applied; 0 before the first."""
    tenants: Mapping[TenantId, SliceInForce] = field(default_factory=dict)
    """Tenants with a slice; others may hold the whole pool."""


NO_SLICES = SlicesInForce()
"""What a worker keeps to that was never given a slice."""
