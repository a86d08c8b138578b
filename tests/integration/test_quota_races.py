"""Sixteen gateways, each a process, race for one set of limits: an observer finds none exceeded."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.limits import Account, Limits
from tests.fakes.quota_values import a_reservation, a_settlement, admits, an_account, use_of
from tests.fakes.racing_gateways import BUDGET, NUM_GATEWAYS, PARENT, team
from tests.fakes.valkey import eventually

RACE_LIMIT_S = 100.0


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
    organisation = an_account(PARENT).organisation
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.racing_gateways", valkey_url, organisation),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), RACE_LIMIT_S)
    assert process.returncode == 0
    seen = sorted(map(json.loads, out.splitlines()), key=lambda one: one["at"])
    # All asked at once and none let go before all were answered: there was room for so many.
    first = [one for one in seen if one["step"] == 0]
    assert len({one["gateway"] for one in first}) == NUM_GATEWAYS
    assert Counter(one["what"] for one in first) == {"admitted": 8, "ended": 8, "refused": NUM_GATEWAYS - 8}
    check([event_of(one, organisation) for one in seen if one["what"] != "refused"])
    refused = {one["by"] for one in seen if one["what"] == "refused"}
    assert refused == {"concurrency", BUDGET}, "both limits were reached"
    redis = connect(valkey_url, limit_s=20.0)
    parent = (await RedisQuota(redis).use(team(0, organisation)))[1]
    used = sum(one["used"] for one in seen if one["what"] == "ended")
    assert (parent.num_leases, parent.reserved_tokens) == (0, 0)
    assert PARENT.daily is not None
    assert parent.day_spent == parent.day_charged == used <= PARENT.daily.tokens
    await redis.close()


def event_of(seen: dict[str, int], organisation: str) -> Event:
    """Return what a gateway saw as the observer counts it."""
    account = team(seen["team"], organisation)
    if seen["what"] == "admitted":
        return Event(account, seen["choices"], seen["tokens"], 0)
    return Event(account, -seen["choices"], -seen["tokens"], seen["used"])


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
