"""Two gateways, the intervals that users have: one's stream spends the budget, the other's ends for it.

That it does so within 2 s is asserted in a time of its own (`tests/unit/gateway/test_budget_watch.py`).
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.stores.quota_redis import RedisQuota
from protos.types.v1 import types_pb2
from services.chassis.redis import connect
from services.domain.limits import Budget, Limits
from tests.fakes.gateway_rig import ACME_KEY, Answer, Rig, a_request, gateway_rig
from tests.fakes.quota_values import an_account, use_of
from tests.fakes.worker_server import endless

MORE = 100
"""Tokens that the budget has room for when it is lowered."""


class Stream:
    """A stream of one gateway, and its tokens so far."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        rig.worker.script, rig.worker.step_s = endless, 0.01
        self.answer = Answer([])
        self.num_tokens = 0

    async def read(self) -> None:
        call = self._rig.stub.Generate(a_request(max_output_tokens=1500), metadata=ACME_KEY, timeout=100)
        async for message in call:
            self.answer.messages.append(message)
            self.num_tokens = len(self.answer.text(0))


async def test_a_stream_ends_soon_after_another_gateways_stream_spent_its_budget(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = an_account(Limits(daily=Budget(tokens=10_000)))
    redis = connect(valkey_url, limit_s=20.0)
    async with AsyncExitStack() as stack:
        rigs = [await stack.enter_async_context(gateway_rig(quota=RedisQuota(redis))) for _ in range(2)]
        for rig in rigs:
            monkeypatch.setattr(rig.parts.auth, "account_of", lambda *_, **__: account)
        slow, quick = map(Stream, rigs)
        reading = [asyncio.create_task(one.read()) for one in (slow, quick)]
        await rigs[0].until(lambda: slow.num_tokens > 0)
        rigs[0].worker.step_s = 0.2
        await rigs[0].until(lambda: quick.num_tokens > 0)
        # Lowered under both: what was reserved would never let one stream spend what is another's.
        budget = slow.num_tokens + quick.num_tokens + MORE
        account = an_account(Limits(daily=Budget(tokens=budget)), organisation=account.organisation)
        await rigs[0].until(lambda: slow.num_tokens + quick.num_tokens > budget)
        of_its_own = slow.num_tokens
        await asyncio.wait_for(asyncio.gather(*reading), 60)
        for stream, rig in zip((slow, quick), rigs, strict=True):
            (finished,) = stream.answer.of("finished")
            assert finished.reason == types_pb2.FINISH_REASON_BUDGET
            assert finished.output_tokens == stream.num_tokens == stream.answer.receipt.usage.output_tokens
            await rig.settled()
        assert of_its_own < budget, "the other one had to spend for it"
        use = await use_of(rigs[0].quota, account)
        assert (use.num_leases, use.reserved_tokens, use.day_spent) == (0, 0, use.day_charged)
    await redis.close()
