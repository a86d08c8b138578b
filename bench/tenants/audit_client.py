"""A gateway's quota half, for the audit: follows the tenants, checks lengths, reserves, renews and settles.

Run by `audit`, in several processes that may be killed at any time:
`python -m bench.tenants.audit_client URL NAME COUNT [--unlimited]`. Prints one line for each request whose
outcome it knows. With `--unlimited` it sends no limits and checks no lengths: that is the audit's control.
"""

import argparse
import asyncio
import random
from dataclasses import dataclass, replace

from bench.tenants.audit_store import PATIENT_S, patiently
from gateway.core.directory import TenantDirectory
from gateway.core.lengths import check_prompt, class_of
from gateway.core.request import GenerationRequest
from gateway.core.validation import ModelProfile, check
from gateway.settler import Settler
from gateway.stores.quota import Reservation, Running, Settlement
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.tenant_feed import TenantFeed
from services.chassis.redis import connect
from services.domain.bands import Bands
from services.domain.capacity import Capacity
from services.domain.errors import DependencyDown, InvalidField, QuotaExceeded
from services.domain.ids import RequestId
from services.domain.limits import Account, Limits
from services.domain.tenant import Tenant

LEASE_S = 2.0
"""Long enough for a renewal every `gateway.settler.WATCH_EVERY_S`."""
MODEL = "chat"
NUM_AT_ONCE = 8
MOST_PROMPT, MOST_OUTPUT = 200, 150
LONGEST_S = 0.03
STUCK_SHARE = 0.02
"""Of the requests, whose leases nobody renews and that end after them."""

_PROFILE = ModelProfile(
    vocab_size=100,
    max_prompt_bytes=10**6,
    max_cut_prompt_bytes=10**6,
    eos_token_ids=frozenset(),
    generation_defaults={},
    capacity=Capacity(max_context_tokens=10**5, total_pages=10**5, page_size=16, max_sequences=64),
)


@dataclass(slots=True, kw_only=True)
class Client:
    """One process' requests."""

    name: str
    store: RedisQuota
    settler: Settler
    directory: TenantDirectory
    is_limited: bool
    running: dict[RequestId, Running]

    async def request(self, number: int) -> None:
        """Ask once, run for a moment, settle."""
        draw = random.Random(f"{self.name}-{number}")
        teams = sorted(one.id for one in self.directory.book if one.parent is not None)
        tenant = self.directory.book.effective(draw.choice(teams))
        assert tenant is not None
        prompt, output, n = draw.randint(1, MOST_PROMPT), draw.randint(1, MOST_OUTPUT), draw.randint(1, 3)
        if number == 0:
            # The first one of all is admitted whatever the limits are, and its lease runs out.
            prompt = output = n = 1
        asked = GenerationRequest(model=MODEL, token_ids=(1,), num_choices=n, max_output_tokens=output)
        try:
            wanted = self._reservation(RequestId(f"{self.name}-{number}"), asked, tenant, prompt)
        except InvalidField:
            print("refused", flush=True)
            return
        try:
            await self.store.reserve(wanted)
        except QuotaExceeded:
            print("refused", flush=True)
            return
        except DependencyDown:
            self._settle(wanted, 0)  # It may be reserved all the same.
            print("unknown", flush=True)
            return
        print("admitted", wanted.id, flush=True)
        used = draw.randint(0, wanted.output_tokens)
        if number == 0 or draw.random() < STUCK_SHARE:
            await asyncio.sleep(1.2 * LEASE_S)
        else:
            self.running[wanted.id] = Running(wanted, used // 2)
            await asyncio.sleep(draw.uniform(0, LONGEST_S))
            del self.running[wanted.id]
        self._settle(wanted, used)

    def _settle(self, wanted: Reservation, used: int) -> None:
        prompt = wanted.prompt_tokens if used else 0
        self.settler.settle(
            Settlement(
                id=wanted.id, account=wanted.account, prompt_tokens=prompt, output_tokens=used, ending=b""
            )
        )

    def _reservation(
        self, name: RequestId, asked: GenerationRequest, tenant: Tenant, prompt: int
    ) -> Reservation:
        """Return the worst case, as the gateway does.

        Raises:
            InvalidField: It is longer than the tenant may ask for.
        """
        if self.is_limited:
            options = check(asked, tenant, _PROFILE, 0, Bands())
            check_prompt(asked, tenant, options, _PROFILE, prompt)
        key = self.directory.keys_of(tenant.id)[0]
        account = self.directory.book.account(
            tenant.id,
            request_class=class_of(asked, tenant, prompt, 10**6),
            model=asked.model,
            key_id=key.id,
            key_limits=key.limits,
        )
        account = replace(account, model=asked.model)
        assert asked.num_choices is not None
        assert asked.max_output_tokens is not None
        return Reservation(
            id=name,
            account=account if self.is_limited else _unlimited(account),
            num_choices=asked.num_choices,
            prompt_tokens=prompt,
            output_tokens=asked.num_choices * asked.max_output_tokens,
        )


def _unlimited(account: Account) -> Account:
    return replace(account, scopes=tuple(replace(one, limits=Limits()) for one in account.scopes))


async def main(url: str, name: str, count: int, *, is_limited: bool) -> None:
    redis = connect(url, limit_s=PATIENT_S)
    feed = TenantFeed(TenantDirectory(), RedisTenantLog(redis), dict)
    await patiently(feed.refresh)
    store = RedisQuota(redis, lease_s=LEASE_S)
    running: dict[RequestId, Running] = {}
    settler = Settler(store, lambda _: list(running.values()), lambda _: None)
    client = Client(
        name=name,
        store=store,
        settler=settler,
        directory=feed.directory,
        is_limited=is_limited,
        running=running,
    )
    at_once = asyncio.Semaphore(NUM_AT_ONCE)

    async def one(number: int) -> None:
        async with at_once:
            await client.request(number)

    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(feed.run()), group.create_task(settler.run())]
        await asyncio.gather(*(one(number) for number in range(count)))
        await settler.drained()
        for task in beside:
            task.cancel()
    await redis.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("name")
    parser.add_argument("count", type=int)
    parser.add_argument("--unlimited", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.url, given.name, given.count, is_limited=not given.unlimited))
