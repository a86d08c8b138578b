"""What tenants are entitled to now, for requests that wait: an edit reaches those too.

Knows the tenants and who has something live here. Knows no queue; what is told to the scheduler, and when, is
its link's business.
"""

import dataclasses
from collections.abc import Mapping

from gateway.core.directory import TenantDirectory
from gateway.core.lengths import class_of
from gateway.core.validation import band_of
from gateway.live_table import LiveTable
from services.domain.ids import TenantId
from services.rpc.gateway_values import Acquisition


class CurrentTerms:
    """`TenantTerms` as this gateway's directory has them.

    Args:
        long_from_tokens: Where a tenant has no threshold of its own.
    """

    def __init__(self, directory: TenantDirectory, table: LiveTable, long_from_tokens: int) -> None:
        self._directory = directory
        self._table = table
        self._long_from_tokens = long_from_tokens

    def applied(self, one: Acquisition) -> Acquisition:
        """Return a request under the terms of now; of a tenant that is gone it stays as it was."""
        book = self._directory.book
        tenant = book.effective(one.tenant)
        if tenant is None:
            return one
        return dataclasses.replace(
            one,
            band=band_of(one.band_asked, tenant, book.bands),
            request_class=class_of(one.class_asked, tenant, one.num_prompt_tokens, self._long_from_tokens),
            weight=tenant.weight,
        )

    def weights(self, told: Mapping[TenantId, float]) -> Mapping[TenantId, float]:
        """Return the weights of tenants with something live here, and of who weighs other than `told`."""
        book = self._directory.book
        live = {one.tenant.id for one in self._table.all()}
        tenants = map(book.get, live | told.keys())
        return {
            one.id: one.weight
            for one in tenants
            if one is not None and (one.id in live or one.weight != told[one.id])
        }
