"""A stream ends at a token boundary, with its own reason, once its tenant's hard budget is spent."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import grpc
import pytest

from gateway.budget_enforcement import BudgetEnforcement
from gateway.stores.quota import QuotaStore, Spent
from gateway.stores.quota_redis import RedisQuota
from protos.types.v1 import types_pb2
from services.chassis.errors import from_rpc_error
from services.chassis.redis import connect
from services.domain.errors import QuotaExceeded
from services.domain.limits import Account, Budget, Limits, Scope, ScopeKind
from tests.fakes.gateway_rig import ACME_KEY, Answer, Rig, a_request, gateway_rig
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_settlement, an_account, use_of, with_limits
from tests.fakes.worker_server import endless


@dataclass
class Limited:
    """A rig whose callers all count against one account, which a test may edit while they run."""

    rig: Rig
    account: Account

    def edit(self, *limits: Limits) -> None:
        self.account = with_limits(self.account, *limits)

    def start(self, **fields: object) -> asyncio.Task[Answer]:
        async def read() -> Answer:
            call = self.rig.stub.Generate(a_request(**fields), metadata=ACME_KEY, timeout=60)
            return Answer([message async for message in call])

        return asyncio.create_task(read())

    async def running(self, number: int) -> None:
        await self.rig.until(
            lambda: sum(one.first_token_at is not None for one in self.rig.parts.table.all()) == number
        )


@pytest.fixture(params=["memory", "redis"])
async def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Limited]:
    monkeypatch.setattr("gateway.settler.WATCH_EVERY_S", 0.05)
    redis = connect(request.getfixturevalue("valkey_url"), limit_s=20.0)
    quota: QuotaStore = MemoryQuota(time.time) if request.param == "memory" else RedisQuota(redis)
    async with gateway_rig(quota=quota) as rig:
        found = Limited(rig, an_account(Limits()))
        monkeypatch.setattr(rig.parts.auth, "account_of", lambda *_, **__: found.account)
        rig.worker.script, rig.worker.step_s = endless, 0.01
        yield found
    await redis.close()


def reasons_of(answer: Answer) -> set[int]:
    return {finished.reason for finished in answer.of("finished")}


async def ends_with_budget(limited: Limited, answers: Sequence[asyncio.Task[Answer]]) -> None:
    """All streams end well with the reason, and what was used is what is charged."""
    ended = await asyncio.wait_for(asyncio.gather(*answers), 60)
    assert [reasons_of(answer) for answer in ended] == [{types_pb2.FINISH_REASON_BUDGET}] * len(ended)
    for answer in ended:
        tokens = sum(finished.output_tokens for finished in answer.of("finished"))
        assert tokens == answer.receipt.usage.output_tokens == len("".join(answer.text(n) for n in range(2)))
        assert 0 < tokens < 1500
    await limited.rig.settled()
    await limited.rig.until(lambda: limited.rig.worker.running == {})


async def test_a_budget_that_is_lowered_ends_the_streams_that_are_over_it(limited: Limited) -> None:
    answers = [limited.start(max_output_tokens=1500), limited.start(max_output_tokens=700, n=2)]
    await limited.running(2)
    limited.edit(Limits(daily=Budget(tokens=20)))
    await ends_with_budget(limited, answers)
    use = await use_of(limited.rig.quota, limited.account)
    assert (use.num_leases, use.reserved_tokens) == (0, 0)
    assert use.day_spent == use.day_charged >= 20


@pytest.mark.parametrize("period", ["daily", "monthly"])
async def test_a_budget_that_another_spent_ends_the_stream(limited: Limited, period: str) -> None:
    budget = Budget(tokens=1700)
    limited.edit(Limits(daily=budget) if period == "daily" else Limits(monthly=budget))
    answer = limited.start(max_output_tokens=1500)
    await limited.running(1)
    # Another gateway's request that the store had forgotten: it is charged all the same.
    await limited.rig.quota.settle([a_settlement(limited.account, "elsewhere", output=1690)])
    await ends_with_budget(limited, [answer])


async def test_a_parents_budget_ends_its_teams_streams(limited: Limited) -> None:
    limited.edit(Limits(), Limits())
    answer = limited.start(max_output_tokens=1500)
    await limited.running(1)
    limited.edit(Limits(), Limits(daily=Budget(tokens=5)))
    sibling = an_account(Limits(), Limits(), tenant="sibling", organisation=limited.account.organisation)
    await limited.rig.quota.settle([a_settlement(sibling, "theirs")])
    await ends_with_budget(limited, [answer])


async def test_what_waits_for_a_worker_is_refused(limited: Limited) -> None:
    limited.rig.scheduler.holds = True
    waiting = limited.start()
    await limited.rig.until(lambda: limited.rig.scheduler.waiting)
    limited.edit(Limits(daily=Budget(tokens=0)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await waiting
    refusal = from_rpc_error(caught.value)
    assert type(refusal) is QuotaExceeded
    assert refusal.detail.quota == "tenant/team/daily_budget"
    await limited.rig.settled()
    assert (await use_of(limited.rig.quota, limited.account)).day_charged == 0


async def test_a_soft_budget_ends_nothing(limited: Limited) -> None:
    limited.edit(Limits(daily=Budget(tokens=1, hard=False)))
    answer = limited.start(max_output_tokens=60)
    assert reasons_of(await answer) == {types_pb2.FINISH_REASON_LENGTH}


@pytest.mark.parametrize(
    "kinds", list(permutations((ScopeKind.CLASS, ScopeKind.MODEL))), ids=["class first", "model first"]
)
async def test_a_model_called_like_a_class_has_a_budget_of_its_own(
    limited: Limited, kinds: tuple[ScopeKind, ...]
) -> None:
    answers = [limited.start(max_output_tokens=1500) for _ in kinds]
    await limited.running(2)
    table = limited.rig.parts.table
    budgets = {ScopeKind.CLASS: Budget(tokens=1000, hard=False), ScopeKind.MODEL: Budget(tokens=1000)}
    scopes = {kind: Scope(kind=kind, id="team/short", limits=Limits(daily=budgets[kind])) for kind in kinds}
    for live, kind in zip(table.all(), kinds, strict=True):
        assert live.quota_hold is not None
        account = replace(limited.account, scopes=(scopes[kind],))
        reservation = replace(live.quota_hold.reservation, account=account)
        live.quota_hold = replace(
            live.quota_hold, reservation=reservation, account_now=lambda account=account: account
        )
    enforcement, organisation = BudgetEnforcement(table), limited.account.organisation
    told = [one.reservation.account.scopes[0].name for one in enforcement.running(False)]
    assert told == ["model/team/short"]
    enforcement.enforce({(organisation, scope.name): Spent(1000, 1000) for scope in scopes.values()})
    are_over = [all(choice.is_over for choice in live.plan.choices) for live in table.all() if live.plan]
    assert are_over == [kind is ScopeKind.MODEL for kind in kinds]
    for answer in answers:
        answer.cancel()
    await asyncio.gather(*answers, return_exceptions=True)
