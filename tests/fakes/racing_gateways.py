"""Sixteen gateways as processes of their own, racing for the quotas of one organisation.

Run as `python -m tests.fakes.racing_gateways URL ORGANISATION`; prints a line of JSON for each thing that a
gateway saw, with the machine's monotonic time. First all ask at once, and none lets go before all were
answered; then each asks and settles until a budget refuses it.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable

from gateway.stores.quota_redis import RedisQuota
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from services.domain.limits import Account, Budget, Limits
from tests.fakes.quota_values import a_reservation, a_settlement, an_account

NUM_GATEWAYS = 16
TEAM = Limits(max_concurrency=5, daily=Budget(tokens=2000))
PARENT = Limits(max_concurrency=8, daily=Budget(tokens=4000))
BUDGET = "daily_budget"
MAX_STEPS = 2000


def team(number: int, organisation: str) -> Account:
    return an_account(TEAM, PARENT, tenant=f"t{number % 4}", organisation=organisation)


def _say(number: int, what: str, **more: object) -> None:
    line = json.dumps({"at": time.monotonic_ns(), "gateway": number, "what": what} | more) + "\n"
    os.write(1, line.encode())  # Whole, whoever else writes: it is shorter than PIPE_BUF.


Settle = Callable[[], Awaitable[None]]


class Racer:
    """One gateway."""

    def __init__(self, url: str, organisation: str, number: int) -> None:
        self._redis = connect(url, limit_s=60.0)
        self._store = RedisQuota(self._redis, lease_s=3600.0)
        self._organisation, self._number = organisation, number
        self._draw = random.Random(number)
        self._refused_by = ""

    async def run(self, all_were_answered: Callable[[], object]) -> None:
        first = await self._ask(0, self._number, 1, 100)
        all_were_answered()
        if first is not None:
            await first()
        for step in range(1, MAX_STEPS):
            n, output = self._draw.randint(1, 2), self._draw.randint(10, 300)
            settle = await self._ask(step, self._draw.randrange(4), n, output)
            if settle is not None:
                await settle()
            elif self._refused_by == BUDGET:
                break
        await self._redis.close()

    async def _ask(self, step: int, which: int, n: int, output: int) -> Settle | None:
        """Reserve; return what settles it, None when it was refused."""
        account = team(which, self._organisation)
        wanted = a_reservation(account, f"{self._number}-{step}", output=output, n=n)
        asked = {"step": step, "team": which, "choices": n, "tokens": wanted.num_tokens}
        try:
            await self._store.reserve(wanted)
        except QuotaExceeded as refusal:
            self._refused_by = (refusal.detail.quota or "").rpartition("/")[2]
            _say(self._number, "refused", by=self._refused_by, **asked)
            return None
        _say(self._number, "admitted", **asked)

        async def settle() -> None:
            used = self._draw.randint(0, output)
            settlement = a_settlement(account, wanted.id, output=used)
            _say(self._number, "ended", used=settlement.num_tokens, **asked)
            await self._store.settle([settlement] * self._draw.randint(1, 2))

        return settle


def main(url: str, organisation: str) -> None:
    answered_read, answered_write = os.pipe()
    go_read, go_write = os.pipe()

    def all_were_answered() -> None:
        os.write(answered_write, b".")
        os.read(go_read, 1)  # Ends when the parent closes the other end.

    children = []
    for number in range(NUM_GATEWAYS):
        child = os.fork()
        if child == 0:
            os.close(go_write)
            try:
                asyncio.run(Racer(url, organisation, number).run(all_were_answered))
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(child)
    os.close(answered_write)
    num_answered = 0
    while num_answered < NUM_GATEWAYS and (data := os.read(answered_read, NUM_GATEWAYS)):
        num_answered += len(data)
    os.close(go_write)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * NUM_GATEWAYS


if __name__ == "__main__":
    main(*sys.argv[1:])
