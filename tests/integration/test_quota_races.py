"""Sixteen gateways race for one set of limits: a checker recomputes from their log that none was exceeded."""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from services.domain.limits import Account, Budget, Limits
from tests.fakes.quota_values import a_reservation, a_settlement, admits, an_account, use_of
from tests.fakes.valkey import eventually

NUM_GATEWAYS = 16
TEAM = Limits(max_concurrency=5, daily=Budget(tokens=4000))
PARENT = Limits(max_concurrency=8, daily=Budget(tokens=9000))


@dataclass(frozen=True)
class Event:
    """An admission, seen after the store's answer, or with signs turned a settlement, before its call."""

    account: Account
    choices: int
    tokens: int
    used: int


def check(events: Sequence[Event]) -> None:
    """Recompute choices and budgets of every scope, event by event.

    An admission is logged after its answer and a settlement before its call, so the log never shows more at
    once than the store had.
    """
    held: Counter[str] = Counter()
    charged: Counter[str] = Counter()
    for event in events:
        for scope in event.account.scopes:
            held[scope.name] += event.choices
            charged[scope.name] += event.tokens + event.used
            assert held[scope.name] <= (scope.limits.max_concurrency or 0), scope.name
            assert scope.limits.daily is None or charged[scope.name] <= scope.limits.daily.tokens, scope.name


def test_the_checker_sees_an_admission_too_many() -> None:
    account = an_account(Limits(max_concurrency=1))
    with pytest.raises(AssertionError, match="tenant/team"):
        check([Event(account, 1, 10, 0)] * 2)


@pytest.mark.failure("B123")
@pytest.mark.failure("B124")
async def test_sixteen_racing_gateways_never_exceed_a_limit_and_leave_nothing(valkey_url: str) -> None:
    connections = [connect(valkey_url, limit_s=20.0) for _ in range(NUM_GATEWAYS)]
    first = an_account(TEAM, PARENT, tenant="t0")
    teams = [an_account(TEAM, PARENT, tenant=f"t{n}", organisation=first.organisation) for n in range(4)]
    events: list[Event] = []
    refused: Counter[str] = Counter()

    async def gateway(number: int) -> None:
        store, draw = RedisQuota(connections[number]), random.Random(number)
        for step in range(40):
            account, n, output = draw.choice(teams), draw.randint(1, 2), draw.randint(10, 300)
            wanted = a_reservation(account, f"{number}-{step}", output=output, n=n)
            try:
                await store.reserve(wanted)
            except QuotaExceeded as refusal:
                refused[(refusal.detail.quota or "").rpartition("/")[2]] += 1
                continue
            events.append(Event(account, n, wanted.num_tokens, 0))
            await asyncio.sleep(0)
            used = draw.randint(0, output)
            events.append(Event(account, -n, -wanted.num_tokens, 10 + used))
            await store.settle([a_settlement(account, wanted.id, output=used)] * draw.randint(1, 2))

    await asyncio.gather(*map(gateway, range(NUM_GATEWAYS)))
    check(events)
    assert set(refused) == {"concurrency", "daily_budget"}, "both limits were reached"
    used = sum(event.used for event in events)
    parent = (await RedisQuota(connections[0]).use(first))[1]
    assert (parent.num_leases, parent.reserved_tokens) == (0, 0)
    assert parent.day_spent == parent.day_charged == used <= 9000
    for connection in connections:
        await connection.close()


_HOLDER = """
import asyncio, sys
from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.limits import Limits
from tests.fakes.quota_values import a_reservation, an_account

async def main() -> None:
    store = RedisQuota(connect(sys.argv[1], limit_s=20.0), lease_s=1.5)
    account = an_account(Limits(max_concurrency=4), organisation=sys.argv[2])
    for name in range(4):
        await store.reserve(a_reservation(account, name))
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.failure("B125")
async def test_a_gateway_killed_gives_everything_back_when_its_leases_end(valkey_url: str) -> None:
    account = an_account(Limits(max_concurrency=4))
    command = [sys.executable, "-c", _HOLDER, valkey_url, account.organisation]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:  # noqa: ASYNC220
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "held\n"
        holder.send_signal(signal.SIGKILL)
    redis = connect(valkey_url, limit_s=20.0)
    store = RedisQuota(redis)

    async def is_back() -> bool:
        return await admits(store, a_reservation(account, "next", n=4))

    await eventually(is_back)
    await store.settle([a_settlement(account, "next", 0, 0)])
    use = await use_of(store, account)
    assert (use.num_leases, use.reserved_tokens, use.day_charged) == (0, 0, 0)
    await redis.close()
