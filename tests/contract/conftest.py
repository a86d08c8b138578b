"""The quota stores that one suite holds for."""

import time
from collections.abc import AsyncIterator

import pytest

from gateway.stores.quota import QuotaStore
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from tests.fakes.quota_memory import MemoryQuota

LEASE_S = 0.2


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    if request.param == "memory":
        yield MemoryQuota(time.time, lease_s=LEASE_S)
        return
    redis = connect(request.getfixturevalue("valkey_url"), limit_s=2.0)
    yield RedisQuota(redis, lease_s=LEASE_S)
    await redis.close()
