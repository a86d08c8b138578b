"""Where quarantined prompts are kept: in memory and in Redis alike."""

import time
from collections.abc import AsyncIterator

import pytest

from scheduler.stores.quarantine import KEY, QuarantineStore, RedisQuarantine
from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown
from tests.fakes.quarantine_memory import MemoryQuarantine
from tests.fakes.valkey import eventually

BAD, WORSE = b"\x00bad \xff", b"worse"
LONG_S = 3600.0


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[RedisStore]:
    redis = connect(valkey_url, limit_s=20.0)
    await redis.execute("DEL", KEY)
    yield redis
    await redis.close()


@pytest.fixture(params=["memory", "redis"])
def kept(request: pytest.FixtureRequest) -> QuarantineStore:
    if request.param == "memory":
        return MemoryQuarantine(time.monotonic)
    return RedisQuarantine(request.getfixturevalue("redis"))


async def test_what_is_kept_is_read_back_with_the_time_that_is_left(kept: QuarantineStore) -> None:
    assert await kept.load() == {}
    await kept.keep({BAD: LONG_S, WORSE: 2 * LONG_S})
    found = await kept.load()
    assert set(found) == {BAD, WORSE}
    assert 0 < found[BAD] <= LONG_S < found[WORSE] <= 2 * LONG_S


async def test_the_last_word_holds_and_what_is_forgotten_is_gone(kept: QuarantineStore) -> None:
    await kept.keep({BAD: LONG_S, WORSE: LONG_S})
    await kept.keep({BAD: 2 * LONG_S})
    assert (await kept.load())[BAD] > LONG_S
    await kept.forget([BAD, b"never seen"])
    assert set(await kept.load()) == {WORSE}


async def test_each_ends_by_itself(kept: QuarantineStore) -> None:
    await kept.keep({BAD: 0.05, WORSE: LONG_S})

    async def is_over() -> bool:
        return set(await kept.load()) == {WORSE}

    await eventually(is_over)


async def test_redis_forgets_the_whole_when_the_last_one_ends(redis: RedisStore) -> None:
    kept = RedisQuarantine(redis)
    await kept.keep({BAD: LONG_S})
    assert 0 < await redis.execute("PTTL", KEY) <= LONG_S * 1000


async def test_a_silent_redis_is_said_to_be_so() -> None:
    redis = connect("redis://127.0.0.1:1/0")
    with pytest.raises(DependencyDown):
        await RedisQuarantine(redis).load()
    await redis.close()
