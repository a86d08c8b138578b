"""Many tenants with every limit on, racing clients that are killed, limits that are edited: was any exceeded?

A real Valkey with the real scripts, clients in processes of their own (`audit_client`). All that the store
did is read from its MONITOR (`audit_log`) and computed again afterwards (`audit_check`); then all of its keys
are looked at for what is still reserved. Knows no threshold but the tenants' limits; nothing here is timed.
"""

import asyncio
import random
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.tenants.audit_check import Report, check
from bench.tenants.audit_client import MODEL
from bench.tenants.audit_log import events
from bench.tenants.audit_store import END, a_valkey, monitor, patiently
from bench.tenants.audit_tenants import EDITABLE, edited, key_of, tenants
from gateway.core.directory import Change, Kind, TenantDirectory
from gateway.core.keys import key_to_document
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.tenant_admin import TenantAdmin
from gateway.tenant_feed import Edit, TenantFeed
from services.chassis.redis import RedisStore
from services.domain.generation import RequestClass
from services.domain.tenant_document import tenant_to_document

AT_REST_S = 120.0
"""Seconds after which reservations that are still there are taken to stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done."""

    num_requests: int
    num_tenants: int
    num_clients: int = 4
    num_kills: int = 1
    """Of each client, each after an edit."""
    edits_each: int = 3
    """Tenants edited before a kill."""
    is_limited: bool = True
    """False: the control, clients that send no limits."""
    grace_s: float = 1.0
    """Seconds after an edit in which it need not be effective."""


@dataclass(slots=True)
class Audit:
    """What was found."""

    report: Report
    left: list[str]
    """What is still reserved at the end, and counters that are not what was computed."""
    not_admitted: set[str]
    """Requests that a client was told are admitted and that the store's log does not have."""
    num_edits: int
    num_kills: int


@dataclass(slots=True)
class _Run:
    """What its parts share."""

    plan: Plan
    url: str
    redis: RedisStore
    feed: TenantFeed
    draw: random.Random = field(default_factory=lambda: random.Random(4))
    told: set[str] = field(default_factory=set)
    num_edits: int = 0
    num_kills: int = 0


async def audit(plan: Plan, folder: Path) -> Audit:
    """Do it all; `folder` takes the server's socket and the log."""
    async with a_valkey(folder) as (url, redis):
        reader = await monitor(folder)
        feed = TenantFeed(TenantDirectory(), RedisTenantLog(redis), dict)
        await _declare(feed, plan.num_tenants)
        run = _Run(plan, url, redis, feed)
        share = plan.num_requests // plan.num_clients
        await asyncio.gather(*(_client(run, f"c{number}", share) for number in range(plan.num_clients)))
        await _at_rest(run)
        await redis.execute("ECHO", END)
        with (await reader).open("rb") as lines:
            report = check(events(lines), grace_s=plan.grace_s)
        left = [*await _reserved(redis), *await _differences(run, report)]
    return Audit(report, left, run.told - report.admitted, run.num_edits, run.num_kills)


async def _declare(feed: TenantFeed, num_tenants: int) -> None:
    """Put tenants and keys into the store."""
    declared = tenants(num_tenants, MODEL)
    documents = [tenant_to_document(one) for one in declared]
    admin = TenantAdmin(feed)
    await patiently(lambda: admin.apply(documents, delete_missing=False, etag="", who="audit"))
    keys = [key_of(number, tenant) for number, tenant in enumerate(declared)]
    changes = [
        Change(kind=Kind.KEY, id=key.id, tenant=key.tenant, before=None, after=key_to_document(key))
        for key in keys
    ]
    await patiently(lambda: feed.change(lambda: Edit(changes), who="audit"))


async def _client(run: _Run, name: str, count: int) -> None:
    """Let one client ask `count` times; kill and replace it on its way, each time after an edit."""
    for boot in range(run.plan.num_kills + 1):
        kill_after = None if boot == run.plan.num_kills else count // 2
        command = [sys.executable, "-m", "bench.tenants.audit_client", run.url, f"{name}-{boot}", str(count)]
        process = await asyncio.create_subprocess_exec(
            *command, *([] if run.plan.is_limited else ["--unlimited"]), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        num_lines = 0
        try:
            async for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # It was killed within this line.
                outcome, _, rest = line.decode().strip().partition(" ")
                if outcome == "admitted":
                    run.told.add(rest)
                num_lines += 1
                if num_lines == kill_after:
                    await _edit(run)
                    process.kill()
                    run.num_kills += 1
        except BaseException:
            process.kill()
            raise
        finally:
            code = await process.wait()
        is_killed = kill_after is not None and num_lines >= kill_after
        assert is_killed or code == 0, f"client {name} failed"
        count = max(0, count - num_lines)


async def _edit(run: _Run) -> None:
    admin = TenantAdmin(run.feed)
    for _ in range(run.plan.edits_each):
        tenant = run.draw.choice(sorted(run.feed.directory.book, key=lambda one: one.id))
        document = edited(tenant, run.draw.choice((0.5, 0.8, 1.5, 2.0)))
        await patiently(partial(admin.update, document, EDITABLE, etag="", who="audit"))
        run.num_edits += 1


async def _at_rest(run: _Run) -> None:
    """Wait until the leases of those that were killed have ended."""
    store, book = RedisQuota(run.redis), run.feed.directory.book
    async with asyncio.timeout(AT_REST_S):
        for tenant in book:
            if tenant.parent is not None:
                continue
            account = book.account(tenant.id, request_class=RequestClass.SHORT, model="")
            while True:
                # Every call ends leases whose time is over.
                use = (await patiently(partial(store.use, account)))[0]
                if not use.num_leases:
                    break
                await asyncio.sleep(0.1)


async def _reserved(redis: RedisStore) -> list[str]:
    """Look at all keys of the quotas; return what is still reserved in them, or stays for ever."""
    left, cursor = [], b"0"
    keys: list[bytes] = []
    while True:
        cursor, found = await redis.execute("SCAN", cursor, "MATCH", "quire:quota:*", "COUNT", 1000)
        keys += found
        if cursor == b"0":
            break
    for key in sorted(set(keys)):
        name = key.decode()
        if await redis.execute("TTL", key) < 0:
            left.append(f"{name} has no expiry")
        if name.endswith(":leases"):
            left.append(f"{name} has leases")
        if name.endswith(":reservations"):
            states = await redis.execute("HVALS", key)
            left += [f"{name} has an open reservation" for state in states if state not in (b"e", b"s")]
    return left


async def _differences(run: _Run, report: Report) -> list[str]:
    """Return the scopes whose counters are not at rest, or not what was computed again."""
    store, directory = RedisQuota(run.redis), run.feed.directory
    left = [f"{name} is open" for name in sorted(report.open)]
    for tenant in directory.book:
        for request_class in RequestClass:
            key = directory.keys_of(tenant.id)[0]
            account = directory.book.account(
                tenant.id, request_class=request_class, model=MODEL, key_id=key.id, key_limits=key.limits
            )
            for scope, use in zip(account.scopes, await patiently(partial(store.use, account)), strict=True):
                if (use.num_leases, use.reserved_tokens) != (0, 0):
                    left.append(f"{scope.name} has {use.num_leases} leases, {use.reserved_tokens} tokens")
                counters = report.counters.get(scope.name)
                spent = 0 if counters is None else counters.charged[counters.latest[0]]
                if not use.day_spent == use.day_charged == spent:
                    left.append(f"{scope.name}: {use.day_spent} and {use.day_charged} are not {spent}")
    return left
