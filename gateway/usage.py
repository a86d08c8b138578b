"""The use case of whoever asks what was used: a tenant for itself, an admin for a tenant and all below it.

Reads the store's records and adds them up. What ended a moment ago and is not settled yet is not in it.
Tenants that were deleted stay readable, by themselves and in their parents' reports: the audit has who they
were.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence

from gateway.core.directory import Document, Kind, TenantDirectory
from gateway.stores.quota import QuotaStore
from gateway.stores.tenants import MAX_ENTRIES, TenantLog
from services.domain.ids import TenantId
from services.domain.usage import Split, UsageReport, date_of, days_of, grouped


class UsageReports:
    """See the module.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(
        self, directory: TenantDirectory, quota: QuotaStore, log: TenantLog, clock: Callable[[], float]
    ) -> None:
        self._directory = directory
        self._quota = quota
        self._log = log
        self._clock = clock

    async def of_one(self, tenant: TenantId, *, period: str, by: Sequence[Split]) -> UsageReport:
        """Return what a tenant used itself. Errors as of `of_all_below`."""
        return await self._report(tenant, [tenant], {}, period, by)

    async def of_all_below(self, tenant: TenantId, *, period: str, by: Sequence[Split]) -> UsageReport:
        """Return what a tenant and all its descendants used, deleted ones too.

        Raises:
            UnknownTenant: There is and was none of that id.
            InvalidField: The period is of another form or too long.
            DependencyDown: The store does not answer.
        """
        gone = await self._gone()
        tenants = [tenant]
        for one in tenants:
            tenants += [child.id for child in self._directory.book.children(one)]
            tenants += [name for name, document in gone.items() if document.get("parent") == one]
        return await self._report(tenant, tenants, gone, period, by)

    async def _gone(self) -> dict[TenantId, Document]:
        """Return the last documents of tenants that were deleted. Reads the whole audit: for admins alone."""
        gone: dict[TenantId, Document] = {}
        before: int | None = None
        while page := await self._log.audit(before=before, limit=MAX_ENTRIES):
            for change in (entry.change for entry in page):
                name = TenantId(change.id)
                is_gone = change.kind is Kind.TENANT and change.after is None and change.before is not None
                if is_gone and name not in self._directory.book:
                    gone.setdefault(name, change.before or {})
            before = page[-1].version
        return gone

    async def _report(
        self,
        tenant: TenantId,
        tenants: Sequence[TenantId],
        gone: Mapping[TenantId, Document],
        period: str,
        by: Sequence[Split],
    ) -> UsageReport:
        book = self._directory.book
        if tenant not in book and tenant not in gone:
            raise book.unknown(tenant)
        today = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).date()
        days = days_of(period, today)
        organisation, currency = self._home(tenant, gone)
        records = [one for name in tenants for one in await self._quota.usage(organisation, name, days)]
        return UsageReport(
            first=date_of(days[0]),
            last=date_of(days[-1]),
            currency=currency,
            rows=grouped(records, by),
        )

    def _home(self, tenant: TenantId, gone: Mapping[TenantId, Document]) -> tuple[TenantId, str]:
        """Return under which organisation a tenant's usage is kept, and the currency of its prices."""
        currency = ""
        while tenant in gone:
            currency = currency or str(gone[tenant].get("prices", {}).get("currency", ""))
            if (parent := gone[tenant].get("parent")) is None:
                return tenant, currency
            tenant = TenantId(parent)
        served = self._directory.book.effective(tenant)
        if served is None:  # An audit that somebody trimmed knows a child and not its parent.
            return tenant, currency
        if served.prices is not None:
            currency = currency or served.prices.currency
        return self._directory.book.lineage(tenant)[-1].id, currency
