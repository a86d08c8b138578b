"""How many pages each tenant may hold here: its slice, or what was promised before the slice was cut.

A sequence is started only if the slice lets it finish; when the slice is cut afterwards, the tenant keeps the
right to what its running sequences may still need (its bound), and starts nothing until that has shrunk into
the slice. So a cut never costs a running request its pages, and comes to an end. Knows no pages and no other
worker.

Worked number: slice 50, two running sequences of at most 30 and 15 pages, a cut to 40: the bound is 45. When
the one of 15 has ended it is 40, and the tenant may start again.
"""

from collections.abc import Callable, Mapping

from services.domain.ids import TenantId
from services.domain.slices import SliceInForce, SlicesInForce
from worker.engine.commands import SetSlices


class TenantSlices:
    """Slices and bounds of one worker's tenants."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._slices = SetSlices({})
        self._bounds: dict[TenantId, int] = {}
        """Of tenants that may hold more than their slice."""

    @property
    def tenants(self) -> Mapping[TenantId, int]:
        """Tenants with a slice of their own, and its pages."""
        return self._slices.max_pages

    @property
    def version(self) -> int:
        """Of the slices applied last; 0 before the first."""
        return self._slices.version

    @property
    def has_bounds(self) -> bool:
        """Somebody may hold more than its slice."""
        return bool(self._bounds)

    def slice_of(self, tenant: TenantId) -> int:
        """Return the pages that the tenant's sequences may hold together."""
        pages = self._slices.max_pages.get(tenant, self._slices.default_max)
        return self._num_pages if pages is None else min(pages, self._num_pages)

    def bound_of(self, tenant: TenantId) -> int:
        """Return the most pages that the tenant may take now."""
        return self._bounds.get(tenant) or self.slice_of(tenant)

    def cap_of(self, tenant: TenantId) -> int:
        """Return the most pages that the tenant's slice here can ever be."""
        return min(self._slices.caps.get(tenant, self._num_pages), self._num_pages)

    def may_start(self, tenant: TenantId, max_pages: int) -> bool:
        """Say whether the slice lets sequences finish that need `max_pages` together in the worst case."""
        return max_pages <= self.slice_of(tenant) and tenant not in self._bounds

    def replace(self, slices: SetSlices, seated_pages: Mapping[TenantId, int]) -> None:
        """Keep to other slices. `seated_pages`: worst case of each tenant's sequences with a seat, summed."""
        before = {tenant: self.bound_of(tenant) for tenant in seated_pages}
        self._slices = slices
        self._bounds = before
        self.shrink(seated_pages)

    def shrink(self, seated_pages: Mapping[TenantId, int]) -> None:
        """Let bounds follow the sequences that still run."""
        bounds = {tenant: min(bound, seated_pages.get(tenant, 0)) for tenant, bound in self._bounds.items()}
        self._bounds = {tenant: bound for tenant, bound in bounds.items() if bound > self.slice_of(tenant)}

    def in_force(
        self,
        held_by: Callable[[TenantId], int],
        waiting: Mapping[TenantId, tuple[int, float]],
        now: float,
    ) -> SlicesInForce:
        """Return what is kept to.

        Args:
            held_by: Says how many pages a tenant holds.
            waiting: Of tenants that wait for their slice: what their first request needs, and since when.
        """
        tenants = {}
        for tenant in self.tenants:
            needs, since = waiting.get(tenant, (0, now))
            tenants[tenant] = SliceInForce(
                max_pages=self.slice_of(tenant),
                bound=self.bound_of(tenant),
                held=held_by(tenant),
                needs=needs,
                waited_s=now - since,
            )
        return SlicesInForce(version=self.version, tenants=tenants)
