"""A cap that the admin door publishes reaches workers and schedulers without a restart."""

import asyncio
from pathlib import Path

import orjson
import pytest

from kvmanager import __main__ as kvmanager_main
from kvmanager.stores import tenant_caps
from protos.kvmanager.v1 import kvmanager_pb2 as pb
from services.chassis.gather import each
from services.chassis.redis import connect
from services.chassis.stream import Outbox
from services.domain.ids import Epoch
from services.domain.tenant_keys import KV_CAPS_KEY
from services.rpc.convert import peer_to_pb
from tests.fakes.held_ticks import EFFECTIVE_WITHIN_S, REST_S, HeldTicks
from tests.fakes.kv_peers import RawWorker, beat, serving
from tests.fakes.valkey import Valkey


async def test_published_caps_reach_workers_and_schedulers(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    await valkey.start()
    redis = connect(valkey.url, limit_s=20.0)
    async with serving(redis_url=valkey.url) as served:
        worker = RawWorker(served.stub)
        slices = (await worker.receive("slices")).slices
        assert [(one.tenant, one.cap) for one in slices.slices] == [("t", 100)]
        outbox: Outbox[pb.MatchRequest] = Outbox()
        outbox.put_nowait(pb.MatchRequest(hello=peer_to_pb("scheduler", Epoch(1), "test")))
        scheduler = served.stub.Match(outbox)
        beating = asyncio.create_task(beat(outbox, pb.MatchRequest))

        async def caps_of(expected: dict[str, int]) -> None:
            async for message in scheduler:
                told = [dict(one.caps.max_pages) for one in each(message) if one.HasField("caps")]
                if told and told[-1] == expected:
                    return

        async def slices_of(expected: list[tuple[str, int]]) -> None:
            while True:
                told = (await worker.receive("slices")).slices
                if [(one.tenant, one.cap) for one in told.slices] == expected:
                    assert all(one.max_pages <= one.cap for one in told.slices)
                    return

        async with asyncio.timeout(60):
            await caps_of({"t": 100})
            await redis.execute("SET", KV_CAPS_KEY, orjson.dumps({"t": 30, "new": 8}))
            await slices_of([("t", 30), ("new", 8)])
            await caps_of({"t": 30, "new": 8})
            # An empty answer takes back what was published; the file's own stands.
            await redis.execute("SET", KV_CAPS_KEY, "{}")
            await slices_of([("t", 100)])
            await caps_of({"t": 100})
            # A Redis that lost everything lifts nothing.
            await redis.execute("SET", KV_CAPS_KEY, orjson.dumps({"t": 20}))
            await caps_of({"t": 20})
            await redis.execute("FLUSHALL")
            await redis.execute("SET", KV_CAPS_KEY, orjson.dumps({"t": 21}))
            await caps_of({"t": 21})
        beating.cancel()
        scheduler.cancel()
        await worker.leave()
    await redis.close()
    await valkey.stop()


async def test_a_published_cap_is_the_workers_after_one_tick_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = HeldTicks()
    monkeypatch.setattr(kvmanager_main, "next_tick", ticks.next_tick)
    monkeypatch.setattr(tenant_caps, "LIMIT_S", 60.0)  # A machine that is short of time is no outage.
    valkey = Valkey(tmp_path)
    await valkey.start()
    redis = connect(valkey.url, limit_s=20.0)
    async with serving(redis_url=valkey.url) as served, asyncio.timeout(60):
        worker = RawWorker(served.stub)
        await worker.receive("slices")
        await redis.execute("SET", KV_CAPS_KEY, orjson.dumps({"t": 30}))
        ticks.let_one_go()
        while True:
            slices = (await worker.receive("slices")).slices
            if [(one.tenant, one.cap) for one in slices.slices] == [("t", 30)]:
                break
        assert ticks.periods[0] + REST_S <= EFFECTIVE_WITHIN_S
        await worker.leave()
    await redis.close()
    await valkey.stop()
