"""A gateway's quota half, for the audit: follows the tenants, checks lengths, reserves, renews and settles.

Run by `audit`, in several processes that may be killed at any time:
`python -m bench.tenants.audit_client URL NAME COUNT [--without KIND ...] [--deaf]`. Prints one line for each
request whose outcome it knows: the outcome, its id, and how many seconds before its end the tenants were last
asked for. Controls: without a kind of limit it sends none of it; deaf it follows no edit, and after its first
request it waits for a line before it goes on.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from bench.tenants.audit_store import PATIENT_S, patiently
from gateway.backlog import Backlog
from gateway.core.directory import TenantDirectory
from gateway.core.lengths import check_prompt, class_of
from gateway.core.request import GenerationRequest
from gateway.core.validation import ModelProfile, check
from gateway.settler import Settler
from gateway.stores.quota import Reservation, Running, Settlement
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.tenant_feed import TenantFeed
from services.chassis.logging import configure_logging
from services.chassis.redis import RedisStore, connect
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
CAPS = "caps"
FIELDS = {
    "concurrency": "max_concurrency",
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "prompt_tokens": "prompt_tokens_per_minute",
    "output_tokens": "output_tokens_per_minute",
    "daily": "daily",
    "monthly": "monthly",
}
"""Kinds of limit by the field of `Limits` that is none without it; beside them `CAPS`."""

_PROFILE = ModelProfile(
    vocab_size=100,
    max_prompt_bytes=10**6,
    max_cut_prompt_bytes=10**6,
    eos_token_ids=frozenset(),
    generation_defaults={},
    capacity=Capacity(max_context_tokens=10**5, total_pages=10**5, page_size=16, max_sequences=64),
)


class Following(TenantFeed):
    """A feed that knows how old what it knows is."""

    asked_at = 0.0
    """When the last answer was asked for."""

    async def refresh(self) -> None:
        began = time.monotonic()
        await super().refresh()
        self.asked_at = began

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.asked_at


@dataclass(slots=True, kw_only=True)
class Client:
    """One process' requests."""

    name: str
    redis: RedisStore
    store: RedisQuota
    settler: Settler
    feed: Following
    without: Collection[str]
    running: dict[RequestId, Running]

    @property
    def directory(self) -> TenantDirectory:
        return self.feed.directory

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
        name = RequestId(f"{self.name}-{number}")
        try:
            wanted = self._reservation(name, asked, tenant, prompt)
        except InvalidField:
            self._tell("too_long", name)
            return
        try:
            await self.store.reserve(wanted)
        except QuotaExceeded:
            self._tell("refused", name)
            return
        except DependencyDown:
            self._settle(wanted, 0)  # It may be reserved all the same.
            self._tell("unknown", name)
            await patiently(lambda: self.redis.execute("PING"))
            return
        self._tell("admitted", name)
        used = draw.randint(0, wanted.output_tokens)
        if number == 0 or draw.random() < STUCK_SHARE:
            await asyncio.sleep(1.2 * LEASE_S)
        else:
            self.running[wanted.id] = Running(wanted, used // 2)
            await asyncio.sleep(draw.uniform(0, LONGEST_S))
            del self.running[wanted.id]
        self._settle(wanted, used)

    def _tell(self, outcome: str, name: RequestId) -> None:
        print(outcome, name, f"{self.feed.age_s:.3f}", flush=True)

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
        if CAPS not in self.without:
            options = check(asked, tenant, _PROFILE, 0, Bands())
            check_prompt(asked, tenant, options, _PROFILE, prompt)
        key = self.directory.keys_of(tenant.id)[0]
        account = self.directory.book.account(
            tenant.id,
            request_class=class_of(asked.request_class, tenant, prompt, 10**6),
            model=asked.model,
            key_id=key.id,
            key_limits=key.limits,
        )
        account = replace(account, model=asked.model)
        assert asked.num_choices is not None
        assert asked.max_output_tokens is not None
        return Reservation(
            id=name,
            account=_without(account, self.without),
            num_choices=asked.num_choices,
            prompt_tokens=prompt,
            output_tokens=asked.num_choices * asked.max_output_tokens,
        )


def _without(account: Account, kinds: Collection[str]) -> Account:
    """Return what is charged and judged by none of some kinds of limit."""
    nothing = {FIELDS[kind]: None for kind in kinds if kind != CAPS}
    scopes = (replace(one, limits=_limits(one.limits, nothing)) for one in account.scopes)
    return replace(account, scopes=tuple(scopes))


def _limits(limits: Limits, changed: dict[str, None]) -> Limits:
    return replace(limits, **changed)  # type: ignore[arg-type]


async def main(url: str, name: str, count: int, *, without: Collection[str], is_deaf: bool) -> None:
    redis = connect(url, limit_s=PATIENT_S)
    feed = Following(TenantDirectory(), RedisTenantLog(redis), dict)
    await patiently(feed.refresh)
    store = RedisQuota(redis, lease_s=LEASE_S)
    running: dict[RequestId, Running] = {}
    settler = Settler(
        store, Backlog(f"{name}-{os.getpid()}"), lambda _: list(running.values()), lambda _: None
    )
    client = Client(
        name=name, redis=redis, store=store, settler=settler, feed=feed, without=without, running=running
    )
    at_once = asyncio.Semaphore(NUM_AT_ONCE)

    async def one(number: int) -> None:
        async with at_once:
            await client.request(number)

    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(settler.run())]
        if not is_deaf:
            beside.append(group.create_task(feed.run()))
        if is_deaf:
            await one(0)
            await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(one(number) for number in range(int(is_deaf), count)))
        await settler.drained()
        for task in beside:
            task.cancel()
    await redis.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("name")
    parser.add_argument("count", type=int)
    parser.add_argument("--without", nargs="*", default=[], choices=[*FIELDS, CAPS])
    parser.add_argument("--deaf", action="store_true")
    given = parser.parse_args()
    configure_logging("audit", level="error")  # Beside the answers, not among them.
    asyncio.run(main(given.url, given.name, given.count, without=given.without, is_deaf=given.deaf))
