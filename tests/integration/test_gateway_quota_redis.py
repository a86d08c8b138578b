"""The gateway's quotas against a real Valkey: outages, cancelled calls, black holes."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from gateway.core.limit_status import LimitStatus
from gateway.stores.quota import Reservation
from gateway.stores.quota_redis import RedisQuota
from services.chassis.errors import from_rpc_error
from services.chassis.redis import connect
from services.domain.errors import DependencyDown
from tests.fakes.gateway_rig import ACME, ACME_KEY, ACME_TOKENS, Rig, a_request, gateway_rig, generate, use_by
from tests.fakes.quota_values import a_reservation, simple, use_of


@pytest.fixture
async def rig(valkey_url: str) -> AsyncIterator[Rig]:
    redis = connect(valkey_url, limit_s=20.0)
    await redis.execute("FLUSHALL")
    async with gateway_rig(quota=RedisQuota(redis)) as started:
        yield started
    await redis.close()


@pytest.mark.failure("B125")
@pytest.mark.failure("B132")
async def test_what_streams_used_is_what_the_bucket_lost(rig: Rig) -> None:
    answers = await asyncio.gather(*[generate(rig, metadata=ACME_KEY) for _ in range(20)])
    rig.scheduler.holds = True
    call = rig.stub.Generate(a_request(), metadata=ACME_KEY)
    await rig.until(lambda: rig.scheduler.waiting)
    call.cancel()
    await rig.settled()
    used = sum(a.receipt.usage.prompt_tokens + a.receipt.usage.output_tokens for a in answers)
    use = await use_by(rig.quota, ACME)
    assert (use.num_leases, use.reserved_tokens) == (0, 0)
    assert (use.left_tokens or 0) >= ACME_TOKENS - used - 17


class LosesAnswers(RedisQuota):
    """Reserves, and its caller does not hear of it."""

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        await super().reserve(reservation)
        raise DependencyDown("the answer was lost")


@pytest.mark.failure("B125")
async def test_a_reservation_whose_answer_was_lost_is_given_back(valkey_url: str) -> None:
    redis = connect(valkey_url, limit_s=20.0)
    await redis.execute("FLUSHALL")
    async with gateway_rig(quota=LosesAnswers(redis)) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(rig, metadata=ACME_KEY)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await rig.settled()
        use = await use_by(rig.quota, ACME)
        assert (use.num_leases, use.reserved_tokens, use.day_spent) == (0, 0, 0)
    await redis.close()


@pytest.mark.failure("B146")
async def test_cancelled_reservations_leave_every_reply_with_its_own_call(valkey_url: str) -> None:
    store = RedisQuota(connect(valkey_url, limit_s=20.0))
    accounts = [simple(n + 1, 1000 + n) for n in range(100)]

    async def one(n: int) -> None:
        for step in range(n + 1):
            await store.reserve(a_reservation(accounts[n], step, 0, 1))
        assert (await use_of(store, accounts[n])).num_leases == n + 1

    tasks = [asyncio.create_task(one(n)) for n in range(100)]
    for n, task in enumerate(tasks):
        if n % 2:
            asyncio.get_running_loop().call_later(n / 5000, task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None for result in results[::2])
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    assert (await use_of(store, accounts[50])).num_leases == 51


@pytest.mark.failure("B152")
@pytest.mark.parametrize("answers", [False, True])
async def test_a_store_that_is_gone_or_silent_refuses_within_its_limit(answers: bool) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = hole.sockets[0].getsockname()[1]
    if not answers:
        hole.close()
    redis = connect(f"redis://127.0.0.1:{port}/0")
    async with gateway_rig(quota=RedisQuota(redis)) as rig:
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(rig, metadata=ACME_KEY)
            assert type(from_rpc_error(caught.value)) is DependencyDown
        assert rig.worker.submits == []
        assert len(rig.scheduler.acquired) == 1
        assert not redis.is_up
    await redis.close()
    hole.close()


@pytest.mark.failure("B149")
async def test_a_burst_of_calls_is_answered_one_by_one(valkey_url: str) -> None:
    redis = connect(valkey_url, limit_s=20.0)
    store = RedisQuota(redis)
    account = simple(1000, 1_000_000)

    def a_call(n: int) -> asyncio.Task[LimitStatus]:
        return asyncio.create_task(store.reserve(a_reservation(account, n, 0, 1)))

    tasks = [a_call(n) for n in range(500)]
    for task in tasks[::5]:
        asyncio.get_running_loop().call_later(0.01, task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {LimitStatus, asyncio.CancelledError}
    assert (await use_of(store, account)).num_leases >= 400
    assert redis.is_up
    await asyncio.gather(*[a_call(n) for n in range(500)])
    assert (await use_of(store, account)).num_leases == 500
    await redis.close()
