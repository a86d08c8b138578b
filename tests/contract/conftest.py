"""The implementations that one suite holds for, where several files make it up."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.stores.quota import LEASE_S, QuotaStore
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import AUDIT_KEY, KEYS_KEY, TENANTS_KEY, USED_KEY, RedisTenantLog, TenantLog
from services.chassis.redis import RedisStore, connect
from services.domain.limits import Account
from services.domain.tenant_keys import HEAD_KEY, KV_CAPS_KEY
from tests.fakes.contract_executors import EXECUTORS, SLOW, ready
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import simple
from tests.fakes.sampler_rows import Sample
from tests.fakes.tenants_memory import MemoryTenantLog
from tests.unit.executors.native_models import INSTRUCTION_SETS, plan_executor
from worker.engine import sampler
from worker.engine.batch import Int32, SampleRow, StepResult
from worker.executors.base import Executor
from worker.executors.native.sampling import NativeRows, begin_sample
from worker.executors.native_executor import NativeExecutor


@pytest.fixture
def lease_s() -> float:
    """Longer than any test; those about leases that end ask for a short one."""
    return LEASE_S


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, lease_s: float) -> AsyncIterator[QuotaStore]:
    if request.param == "memory":
        yield MemoryQuota(time.time, lease_s=lease_s)
        return
    redis = connect(request.getfixturevalue("valkey_url"), limit_s=20.0)
    yield RedisQuota(redis, lease_s=lease_s)
    await redis.close()


@pytest.fixture
def account() -> Account:
    """What a request of a tenant that no other test has counts against."""
    return simple()


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[RedisStore]:
    redis = connect(valkey_url, limit_s=20.0)
    await redis.execute("DEL", HEAD_KEY, TENANTS_KEY, KEYS_KEY, AUDIT_KEY, USED_KEY, KV_CAPS_KEY)
    yield redis
    await redis.close()


@pytest.fixture(params=["memory", "redis"])
async def log(request: pytest.FixtureRequest, redis: RedisStore) -> TenantLog:
    return MemoryTenantLog() if request.param == "memory" else RedisTenantLog(redis)


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXECUTORS]
)  # fmt: skip
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    yield from ready(request.param, monkeypatch)


@pytest.fixture(scope="session")
def natives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sample]]:
    """The native samplers by instruction set, each on the threads of some engine."""
    cache = tmp_path_factory.mktemp("cache")
    executors = {
        name: plan_executor(
            lambda g: g.embed("table", vocab_size=1, width=2),
            {"table": np.zeros((1, 2), np.float32)},
            cache,
            num_threads=2,
            instruction_set=name,
        )
        for name in INSTRUCTION_SETS
    }

    def sampler_of(executor: NativeExecutor) -> Sample:
        library, engine = executor._library, executor._engine

        def sample(logits: NDArray[np.float32], rows: Sequence[SampleRow], *more: Int32) -> StepResult:
            draw = begin_sample(library, engine, logits, NativeRows(rows), *more)
            library.check("wait", engine, draw.number)
            return draw.result()

        return sample

    yield {name: sampler_of(executor) for name, executor in executors.items()}
    for executor in executors.values():
        executor.close()


@pytest.fixture(params=INSTRUCTION_SETS)
def native(request: pytest.FixtureRequest, natives: dict[str, Sample]) -> Sample:
    return natives[request.param]


@pytest.fixture(params=["python", *INSTRUCTION_SETS])
def sample(request: pytest.FixtureRequest) -> Sample:
    return sampler.sample if request.param == "python" else request.getfixturevalue("natives")[request.param]
