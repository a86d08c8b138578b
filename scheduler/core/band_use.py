"""How far each tenant of a band is over its share: what Ranks tell workers, and who may ask others to yield.

A tenant is here while it waits or is served, in whatever class. It is a bucket of service by weight: what it
gets fills it, and whatever anybody of the band gets drains it by `LEEWAY` times its weight's part of that.
Alone it stays empty; with an equal backlog beside it too; it fills while the tenant takes more than `LEEWAY`
times its part because others ask for less than theirs. That is allowed, and when they ask it has to yield.
Worked number: equal weights, 770 of 1,000 tokens go to one: it gains 770 - 1.25 * 500 = 145, the other none.

Knows no queue, no worker and no time.
"""

from dataclasses import dataclass

from services.domain.ids import TenantId

LEEWAY = 1.25
"""Times its part that a tenant may take for ever: equal backlogs even out, and neither is over its share."""


@dataclass(slots=True)
class _Bucket:
    weight: float
    drained: float
    """The band's drain when `level` was right."""
    level: float = 0.0
    num_requests: int = 0


class BandUse:
    """The tenants of one band of one model."""

    def __init__(self, most: float) -> None:
        """Args: most: Fullest that a bucket gets, so that excess of long ago is forgotten."""
        self._most = most
        self._drained = 0.0
        """Service by weight that has drained from each bucket."""
        self._weight = 0.0
        self._buckets: dict[TenantId, _Bucket] = {}

    def came(self, tenant: TenantId, weight: float) -> None:
        """One more of its requests waits."""
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = _Bucket(weight, self._drained)
            self._weight += weight
        self.weigh(tenant, weight)
        bucket.num_requests += 1

    def weigh(self, tenant: TenantId, weight: float) -> None:
        """Measure a tenant, if it is here, by this weight from now on."""
        bucket = self._buckets.get(tenant)
        if bucket is not None and weight != bucket.weight:
            self._weight += weight - bucket.weight
            bucket.weight = weight

    def left(self, tenant: TenantId) -> None:
        """One of its requests is over, placed or not. Of who has none nothing is remembered."""
        bucket = self._buckets[tenant]
        bucket.num_requests -= 1
        if bucket.num_requests == 0:
            del self._buckets[tenant]
            self._weight = self._weight - bucket.weight if self._buckets else 0.0

    def served(self, tenant: TenantId, cost: float) -> None:
        """Count service, in tokens, of a tenant that is here (or take back what was counted wrongly)."""
        bucket, drain = self._buckets[tenant], LEEWAY * cost / self._weight
        level = self.level(tenant) + cost / bucket.weight
        self._drained += drain
        bucket.level = min(self._most, max(0.0, level - drain))
        bucket.drained = self._drained

    def level(self, tenant: TenantId) -> float:
        """Return how full its bucket is, in tokens by weight; 0 for one that is not here."""
        bucket = self._buckets.get(tenant)
        return 0.0 if bucket is None else max(0.0, bucket.level - (self._drained - bucket.drained))
