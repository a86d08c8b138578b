"""The use case of whoever asks what was used: a tenant for itself, an admin for a tenant and all below it.

Reads the store's records and adds them up. What ended a moment ago and is not settled yet is not in it.
"""

import datetime
from collections.abc import Callable, Sequence

from gateway.core.directory import TenantDirectory
from gateway.stores.quota import QuotaStore
from services.domain.document_values import nearest_name
from services.domain.errors import UnknownTenant
from services.domain.ids import TenantId
from services.domain.usage import Split, UsageReport, date_of, days_of, grouped


class UsageReports:
    """See the module.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, directory: TenantDirectory, quota: QuotaStore, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._quota = quota
        self._clock = clock

    async def of_one(self, tenant: TenantId, *, period: str, by: Sequence[Split]) -> UsageReport:
        """Return what a tenant used itself. Errors as of `of_all_below`."""
        return await self._report(tenant, [tenant], period, by)

    async def of_all_below(self, tenant: TenantId, *, period: str, by: Sequence[Split]) -> UsageReport:
        """Return what a tenant and all its descendants used.

        Raises:
            UnknownTenant: There is none of that id.
            InvalidField: The period is of another form or too long.
            DependencyDown: The store does not answer.
        """
        tenants = [tenant]
        for one in tenants:
            tenants += [child.id for child in self._directory.book.children(one)]
        return await self._report(tenant, tenants, period, by)

    async def _report(
        self, tenant: TenantId, tenants: Sequence[TenantId], period: str, by: Sequence[Split]
    ) -> UsageReport:
        book = self._directory.book
        served = book.effective(tenant)
        if served is None:
            close = nearest_name(tenant, [one.id for one in book])
            hint = f"; nearest known: {close}" if close else ""
            raise UnknownTenant(f"there is no tenant {tenant!r}{hint}")
        today = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).date()
        days = days_of(period, today)
        organisation = book.lineage(tenant)[-1].id
        records = [one for name in tenants for one in await self._quota.usage(organisation, name, days)]
        return UsageReport(
            first=date_of(days[0]),
            last=date_of(days[-1]),
            currency="" if served.prices is None else served.prices.currency,
            rows=grouped(records, by),
        )
