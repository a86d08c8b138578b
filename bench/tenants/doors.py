"""Edits, budgets, keys and the audit under load: whole gateways over real gRPC, tenants in a real Redis.

Workers, scheduler and quota counters are the test suite's, because nothing here depends on a model or is
about an outage. Waits for states and measures no time. Knows nothing of fair shares.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import grpc

from bench.tenants.check import Outcome
from gateway.core.directory import Document
from gateway.stores import tenants
from gateway.stores.tenants import TENANTS_KEY, RedisTenantLog
from protos.types.v1 import types_pb2
from services.chassis.errors import from_rpc_error
from services.chassis.redis import RedisStore, connect
from services.domain.errors import BadCredential, InvalidField, ServeError, StaleChange
from services.rpc import tenant_admin
from services.rpc.tenant_admin import TenantAdminClient
from tests.fakes.admin_rig import AdminRig, admin_rig
from tests.fakes.gateway_rig import ADMIN_KEY, a_request, generate
from tests.fakes.valkey import Valkey, eventually
from tests.fakes.worker_server import endless

T = TypeVar("T")

LIMIT_S = 60.0
"""For failures only."""
NUM_CALLERS = 8
NUM_EDITS = 6
NUM_UNSEEN = 100
"""Answers after which a check without its feature stops to wait for an edit that nobody follows."""


@dataclass
class Doors:
    """Two gateways on one Redis; edits are made at one and felt at the other."""

    here: AdminRig
    there: AdminRig
    redis: RedisStore

    @property
    def client(self) -> TenantAdminClient:
        return TenantAdminClient(self.here.channel, ADMIN_KEY)

    async def followed(self) -> None:
        """Wait until the other gateway knows all that this one does."""
        feeds = [rig.rig.parts.admin.feed.directory for rig in (self.here, self.there)]
        await self.there.rig.until(lambda: feeds[1].version == feeds[0].version)

    async def ask(self, secret: str, **fields: Any) -> ServeError | None:
        """Call the other gateway once; return how it refused."""
        try:
            await generate(self.there.rig, metadata=_bearer(secret), **fields)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        return None


@asynccontextmanager
async def doors() -> AsyncIterator[Doors]:
    """Start a Redis and both gateways, and take them down again."""
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        async with AsyncExitStack() as stack:
            # A machine that is short of time is no outage of the store.
            stack.enter_context(patch.object(tenants, "LIMIT_S", LIMIT_S))
            stack.enter_context(patch.object(tenant_admin, "LIMIT_S", LIMIT_S))
            stack.push_async_callback(valkey.stop)
            await valkey.start()
            redis = connect(valkey.url, limit_s=20.0)
            stack.push_async_callback(redis.close)
            rigs = [await stack.enter_async_context(admin_rig(valkey.url)) for _ in range(2)]
            yield Doors(rigs[0], rigs[1], redis)


async def live_edit(is_on: bool) -> Outcome:
    """Narrow and widen a tenant's limit again and again while callers ask at another gateway: each edit is
    felt, and no call ends otherwise than served whole or refused by that limit."""
    async with doors() as two:
        await two.client.create({"id": "team", "max_output_tokens": 50})
        secret = (await two.client.create_key("team")).secret
        await two.followed()
        if not is_on:
            two.there.rig.parts.admin.feed.refresh = _nothing  # type: ignore[method-assign]
        answers: list[str] = []

        async def call() -> None:
            while True:
                error = await two.ask(secret, max_output_tokens=30)
                limited = isinstance(error, InvalidField) and error.detail.field == "max_output_tokens"
                answers.append("served" if error is None else "limited" if limited else error.reason)

        async def felt(answer: str) -> bool:
            start = len(answers)
            async with asyncio.timeout(LIMIT_S):
                while answer not in answers[start:]:
                    if not is_on and len(answers) - start >= NUM_UNSEEN:
                        return False
                    await asyncio.sleep(0.001)
            return True

        num_felt = 0
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(call()) for _ in range(NUM_CALLERS)]
            for number in range(NUM_EDITS):
                narrow = number % 2 == 0
                document = {"id": "team", "max_output_tokens": 20 if narrow else 50}
                await two.client.update(document, ["max_output_tokens"], etag="")
                if not await felt("limited" if narrow else "served"):
                    break
                num_felt += 1
            for caller in callers:
                caller.cancel()
        broken = set(answers) - {"served", "limited"}
        return Outcome(num_felt == NUM_EDITS and not broken, f"{num_felt}/{NUM_EDITS} {' '.join(broken)}")


async def budget_end(is_on: bool) -> Outcome:
    """Lower a tenant's hard budget below what a stream has used: it ends there, with its reason. A soft
    budget is the control."""
    asked = 600
    async with doors() as two:
        await two.client.create({"id": "team"})
        secret = (await two.client.create_key("team")).secret
        await two.followed()
        worker, table = two.there.rig.worker, two.there.rig.parts.table
        worker.script, worker.step_s = endless, 0.05
        request = a_request(max_output_tokens=asked)
        stream = two.there.rig.stub.Generate(request, metadata=_bearer(secret), timeout=LIMIT_S)

        async def read() -> types_pb2.FinishReason:
            (end,) = [one.finished async for one in stream if one.WhichOneof("event") == "finished"]
            reason: types_pb2.FinishReason = end.reason
            return reason

        reading = asyncio.create_task(read())
        await two.there.rig.until(lambda: any(one.first_token_at is not None for one in table.all()))
        worker.is_open.clear()
        await two.client.update({"id": "team", "daily": {"tokens": 5, "hard": is_on}}, ["daily"], etag="")
        await two.followed()
        if is_on:
            await two.there.rig.until(lambda: any(one.ended for one in worker.running.values()))
        worker.step_s = 0.0
        worker.is_open.set()
        reason = await reading
        return Outcome(
            reason == types_pb2.FINISH_REASON_BUDGET and worker.num_tokens < asked,
            f"{worker.num_tokens} of {asked} tokens",
        )


async def key_rotation(is_on: bool) -> Outcome:
    """Rotate a key that callers use at another gateway: none is refused while they change over, and the old
    one opens nothing once it is revoked. A rotation without overlap is the control."""
    async with doors() as two:
        await two.client.create({"id": "team"})
        old = await two.client.create_key("team")
        await two.followed()
        is_known = asyncio.Event()
        refusals: list[ServeError] = []

        async def call(secret: str) -> None:
            error = await two.ask(secret)
            if error is not None:
                refusals.append(error)

        async def change_over(new: str) -> None:
            while not is_known.is_set():
                await call(old.secret)
            await call(old.secret)
            await call(new)

        new = await two.client.rotate_key(old.key.id, overlap_s=3600 if is_on else 0, lifetime_s=None)
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_CALLERS):
                group.create_task(change_over(new.secret))
            await two.followed()
            is_known.set()
        if is_on:
            await two.client.revoke_key(old.key.id)
        await eventually(_refuses(two, old.secret))
        is_new_served = await two.ask(new.secret) is None
        return Outcome(not refusals and is_new_served, f"{len(refusals)} refused")


async def audit(is_on: bool) -> Outcome:
    """Change tenants and keys at two gateways at once and replay the audit: it gives exactly what is kept,
    each entry begins where the last one of its subject ended, and names who and when. The control is an edit
    past the door, which the audit cannot have."""
    async with doors() as two:
        names = count()

        async def edit(rig: AdminRig) -> None:
            client = TenantAdminClient(rig.channel, ADMIN_KEY)
            for _ in range(4):
                name = f"team-{next(names)}"
                await _insist(lambda: client.create({"id": name}))  # noqa: B023 (awaited here)
                await _insist(lambda: client.update({"id": name, "weight": 2}, ["weight"], etag=""))  # noqa: B023
                key = await _insist(lambda: client.create_key(name))  # noqa: B023
                await _insist(lambda: client.rotate_key(key.key.id, overlap_s=60, lifetime_s=None))  # noqa: B023
                await _insist(lambda: client.revoke_key(key.key.id))  # noqa: B023
            await _insist(lambda: client.delete(name))

        await asyncio.gather(edit(two.here), edit(two.there))
        if not is_on:
            await two.redis.execute("HSET", TENANTS_KEY, "team-0", '{"id":"team-0","weight":9}')
        log = RedisTenantLog(two.redis)
        wrong = await differences(log)
        return Outcome(not wrong, f"{len(wrong)} differences")


async def differences(log: RedisTenantLog) -> list[str]:
    """Replay the whole audit; return where it and what is kept are not the same."""
    entries, before = [], None
    while page := await log.audit(before=before):
        entries += page
        before = page[-1].version
    entries.reverse()
    wrong = [] if [one.version for one in entries] == list(range(1, len(entries) + 1)) else ["a gap"]
    state: dict[tuple[str, str], Document] = {}
    for entry in entries:
        subject = (entry.change.kind.value, entry.change.id)
        if state.get(subject) != entry.change.before or not entry.who or entry.at <= 0:
            wrong.append(f"version {entry.version}")
        state.pop(subject, None)
        if entry.change.after is not None:
            state[subject] = entry.change.after
    stored = await log.load()
    kept = {("tenant", name): one for name, one in stored.tenants.items()}
    kept |= {("key", name): one for name, one in stored.keys.items()}
    return wrong + [":".join(subject) for subject in state | kept if state.get(subject) != kept.get(subject)]


# Inside


async def _nothing() -> None:
    """Follow no edit."""


def _bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


def _refuses(two: Doors, secret: str) -> Callable[[], Awaitable[bool]]:
    async def refuses() -> bool:
        return isinstance(await two.ask(secret), BadCredential)

    return refuses


async def _insist(change: Callable[[], Awaitable[T]]) -> T:
    """Make a change however often somebody else is quicker."""
    while True:
        try:
            return await change()
        except StaleChange:
            continue
