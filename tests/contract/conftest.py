"""The implementations that one suite holds for, where several files make it up."""

import time
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.stores.quota import QuotaStore
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from tests.fakes.contract_executors import EXECUTORS, NUM_PAGES, SLOW
from tests.fakes.quota_memory import MemoryQuota
from worker.executors.base import Executor

LEASE_S = 0.2


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    if request.param == "memory":
        yield MemoryQuota(time.time, lease_s=LEASE_S)
        return
    redis = connect(request.getfixturevalue("valkey_url"), limit_s=2.0)
    yield RedisQuota(redis, lease_s=LEASE_S)
    await redis.close()


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXECUTORS]
)  # fmt: skip
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    if request.param == "triton":
        from tests.fakes.interpreted_dots import use_one_order

        use_one_order(monkeypatch)
    made = EXECUTORS[request.param]()
    made.allocate(NUM_PAGES)
    yield made
    made.close()
