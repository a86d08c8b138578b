"""The caps of tenants as the gateways' admin door publishes them in Redis.

Knows one key. Reads only; who may have how much was decided and checked where it was written.
"""

from collections.abc import Mapping

import orjson

from services.chassis.redis import RedisStore
from services.domain.ids import TenantId
from services.domain.tenant_keys import KV_CAPS_KEY

LIMIT_S = 1.0


class PublishedCaps:
    """Tells what has changed since it was asked last."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis
        self._seen: bytes | None = None

    async def read(self) -> Mapping[TenantId, int] | None:
        """Return the caps in pages, None when they are as before or gone: a store that lost them lifts none.

        Raises:
            DependencyDown: Redis does not answer.
        """
        found: bytes | None = await self._redis.execute("GET", KV_CAPS_KEY, limit_s=LIMIT_S)
        if found is None or found == self._seen:
            return None
        self._seen = found
        return {TenantId(tenant): pages for tenant, pages in orjson.loads(found).items()}
