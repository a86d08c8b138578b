"""Many tenants with every limit on, racing gateways and a store that are killed, edits: was a limit exceeded?

A real Valkey with the real scripts; the quota halves of gateways in processes of their own (`audit_client`).
All that the store did is read from its MONITOR (`audit_log`) and computed again afterwards (`audit_check`);
then all of its keys are looked at for what is still reserved. An edit must be effective within a second of
the store's clock. While the store is away nobody can hear of one, so it is not killed within a second of an
edit; but edits come at once after it is back. Knows no threshold but this second and the tenants' limits.
"""

import asyncio
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.tenants.audit_check import Report, check
from bench.tenants.audit_client import MODEL
from bench.tenants.audit_log import events
from bench.tenants.audit_store import PATIENT_S, AuditedStore, audited_store, patiently
from bench.tenants.audit_tenants import EDITABLE, edited, key_of, tenants
from gateway.core.directory import Change, Kind, TenantDirectory
from gateway.core.keys import key_to_document
from gateway.stores.quota import ScopeUse
from gateway.stores.quota_redis import RedisQuota
from gateway.stores.tenants import RedisTenantLog
from gateway.tenant_admin import TenantAdmin
from gateway.tenant_feed import Edit, TenantFeed
from services.chassis.redis import RedisStore, connect
from services.domain.generation import RequestClass
from services.domain.tenant_document import tenant_to_document

GRACE_S = 1.0
"""Seconds of the store's clock after an edit in which it need not be effective."""
AT_REST_S = 120.0
"""Seconds after which reservations that are still there are taken to stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done."""

    num_requests: int
    num_tenants: int
    num_clients: int = 4
    num_kills: int = 1
    """Of each client, by -9, each after an edit."""
    edits_each: int = 3
    """Tenants edited before a kill, and after a restart."""
    num_restarts: int = 1
    """Of the store, by -9."""
    without: tuple[str, ...] = ()
    """A control: kinds of limit that clients do not send."""
    is_deaf: bool = False
    """A control: clients that follow no edit, and ask nearly all they ask a second after some."""
    is_patient: bool = False
    """Let a client that a starved machine kept from asking for the tenants in time judge by what it knew."""


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
    num_restarts: int
    num_unknown: int
    """Requests whose answer was lost."""


@dataclass(slots=True)
class _Run:
    """What its parts share."""

    plan: Plan
    store: AuditedStore
    redis: RedisStore
    feed: TenantFeed
    draw: random.Random = field(default_factory=lambda: random.Random(4))
    told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Requests by their outcome."""
    age_s: dict[str, float] = field(default_factory=dict)
    """Of what a client knew of the tenants, by request."""
    num_told: int = 0
    num_edits: int = 0
    num_kills: int = 0
    edited_at: float = 0.0
    editing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def restarts_at(self) -> list[int]:
        """Return after how many requests the store is killed: evenly between them."""
        parts = self.plan.num_restarts + 1
        return [self.plan.num_requests * number // parts for number in range(1, parts)]

    def grace_s(self, name: str) -> float:
        if not self.plan.is_patient:
            return GRACE_S
        # Of one whose client was killed before it told, nobody knows how starved that was.
        return max(GRACE_S, self.age_s.get(name, math.inf))


async def audit(plan: Plan, folder: Path) -> Audit:
    """Do it all; `folder` takes the server's sockets, its file and the logs."""
    async with audited_store(folder) as store:
        redis = connect(store.url, limit_s=PATIENT_S)
        run = _Run(plan, store, redis, TenantFeed(TenantDirectory(), RedisTenantLog(redis), dict))
        await _declare(run.feed, plan.num_tenants)
        share = plan.num_requests // plan.num_clients
        await asyncio.gather(*(_client(run, f"c{number}", share) for number in range(plan.num_clients)))
        await _at_rest(run)
        left = await _reserved(redis)
        spent = await _spent(run)
        await redis.close()
        await store.stop()
        report = check(events(store.lines()), grace_s=run.grace_s)
    left += [f"{name} is open" for name in sorted(report.open)] + _differences(spent, report)
    return Audit(
        report,
        left,
        run.told["admitted"] - report.admitted,
        run.num_edits,
        run.num_kills,
        store.num_restarts,
        len(run.told["unknown"]),
    )


async def _restart(run: _Run) -> None:
    """Kill the store, bring it back, and edit tenants at once."""
    async with run.editing:
        await asyncio.sleep(max(0.0, run.edited_at + GRACE_S - time.monotonic()))
        await run.store.stop()
        await run.store.start()
    await _edit(run)


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


async def _start_client(run: _Run, name: str, count: int) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "bench.tenants.audit_client", run.store.url, name, str(count)]
    flags = ["--without", *run.plan.without, *(["--deaf"] if run.plan.is_deaf else [])]
    return await asyncio.create_subprocess_exec(
        *command, *flags, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def _client(run: _Run, name: str, count: int) -> None:
    """Let one client ask `count` times; kill and replace it on its way, each time after an edit."""
    for boot in range(run.plan.num_kills + 1):
        kill_after = None if boot == run.plan.num_kills else count // 2
        process = await _start_client(run, f"{name}-{boot}", count)
        assert process.stdout is not None
        num_lines = 0
        try:
            async for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # It was killed within this line.
                outcome, request, age_s = line.decode().split()
                run.told[outcome].add(request)
                run.age_s[request] = float(age_s)
                run.num_told += 1
                if run.num_told in run.restarts_at:
                    await _restart(run)
                num_lines += 1
                if num_lines == 1 and run.plan.is_deaf:
                    await _edit(run)
                    await asyncio.sleep(GRACE_S)
                    assert process.stdin is not None
                    process.stdin.write(b"\n")
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
    async with run.editing:
        for _ in range(run.plan.edits_each):
            tenant = run.draw.choice(sorted(run.feed.directory.book, key=lambda one: one.id))
            document = edited(tenant, run.draw.choice((0.5, 0.8, 1.5, 2.0)))
            await patiently(partial(admin.update, document, EDITABLE, etag="", who="audit"))
            run.num_edits += 1
        run.edited_at = time.monotonic()


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


async def _spent(run: _Run) -> dict[str, ScopeUse]:
    """Return what the store has counted, by scope."""
    store, directory = RedisQuota(run.redis), run.feed.directory
    found: dict[str, ScopeUse] = {}
    for tenant in directory.book:
        for request_class in RequestClass:
            key = directory.keys_of(tenant.id)[0]
            account = directory.book.account(
                tenant.id, request_class=request_class, model=MODEL, key_id=key.id, key_limits=key.limits
            )
            uses = await patiently(partial(store.use, account))
            found |= {scope.name: use for scope, use in zip(account.scopes, uses, strict=True)}
    return found


def _differences(spent: Mapping[str, ScopeUse], report: Report) -> list[str]:
    """Return the scopes whose counters are not at rest, or not what was computed again."""
    left = []
    for name, use in spent.items():
        if (use.num_leases, use.reserved_tokens) != (0, 0):
            left.append(f"{name} has {use.num_leases} leases, {use.reserved_tokens} tokens")
        counters = report.counters.get(name)
        charged = 0 if counters is None else counters.charged[counters.latest[0]]
        if not use.day_spent == use.day_charged == charged:
            left.append(f"{name}: {use.day_spent} and {use.day_charged} are not {charged}")
    return left
