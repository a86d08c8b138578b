"""The scheduler as a process: it is stopped and woken, killed, told to end."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scheduler.stores.quarantine import RedisQuarantine
from services.chassis.grpc import create_channel
from services.chassis.redis import connect
from services.domain.errors import ServeError
from services.rpc.fleet_control import release_quarantine
from services.rpc.fleet_status import queue_status
from tests.fakes.scheduler_peers import FakeGateway, FakeWorker, pb_acquire
from tests.fakes.valkey import eventually


@dataclass
class Process:
    """A scheduler process that serves on `port`."""

    process: asyncio.subprocess.Process
    port: int


@asynccontextmanager
async def scheduler_process(*flags: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "scheduler", "--port", "0", "--probe-port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while (event := json.loads(await process.stderr.readline()))["event"] != "serving":
                pass
        drain = asyncio.create_task(process.stderr.read())
        yield Process(process, event["port"])
        if process.returncode is None:
            process.kill()
        await drain
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_signal_ends_it_at_once_with_its_streams_and_its_spans_written(tmp_path: Path) -> None:
    trace = tmp_path / "spans.jsonl"
    flags = ("--trace", f"file:{trace}")
    async with (
        scheduler_process(*flags) as one,
        create_channel(f"127.0.0.1:{one.port}") as channel,
    ):
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        gateway = await FakeGateway(channel).connect([pb_acquire("a", traceparent=parent)])
        gateway.acquire(pb_acquire("b"))
        await gateway.until(lambda g: len(g.heard["queued"]) >= 2)
        await FakeWorker(channel).connect(granted=1)
        await gateway.until(lambda g: bool(g.heard["placement"]))
        one.process.send_signal(signal.SIGTERM)
        await gateway.ended()
        async with asyncio.timeout(60):
            assert await one.process.wait() == 0
    (span,) = [json.loads(line) for line in trace.read_text().splitlines()]
    assert (span["name"], span["trace_id"], span["parent_id"]) == ("scheduler.acquire", "a" * 32, "b" * 16)
    assert span["attributes"] == {"model": "m", "worker": "worker-0", "cached_tokens": 0}


@pytest.mark.slow
async def test_killed_with_200_waiting_each_is_placed_once_by_the_next() -> None:
    async with scheduler_process() as one, create_channel(f"127.0.0.1:{one.port}") as channel:
        gateway = await FakeGateway(channel).connect()
        await FakeWorker(channel).connect()
        for i in range(200):
            gateway.acquire(pb_acquire(f"r{i}", tokens=16))
        await gateway.until(lambda g: len(g.heard["queued"]) >= 200)
        one.process.kill()
        await gateway.ended()
    async with scheduler_process() as next_one, create_channel(f"127.0.0.1:{next_one.port}") as channel:
        waiting = [pb_acquire(f"r{i}", tokens=16, waited_ms=2000 - i) for i in range(200)]
        back = await FakeGateway(channel).connect(waiting)
        worker = FakeWorker(channel)
        worker.auto = True
        await worker.connect(granted=1)
        await back.until(lambda g: len(g.heard["placement"]) >= 200)
        assert [p.key.request_id for p in back.heard["placement"]] == [f"r{i}" for i in range(200)]
        assert back.heard["welcome"][0].term > gateway.heard["welcome"][0].term


@pytest.mark.slow
async def test_stopped_and_woken_it_drops_what_it_held_and_begins_a_new_term() -> None:
    async with scheduler_process() as one, create_channel(f"127.0.0.1:{one.port}") as channel:
        gateway = await FakeGateway(channel).connect([pb_acquire("a")])
        worker = await FakeWorker(channel).connect()
        await gateway.until(lambda g: bool(g.heard["queued"]))
        one.process.send_signal(signal.SIGSTOP)
        time.sleep(5)  # noqa: ASYNC251  The peers are stopped with it, so that only its own clock can tell.
        one.process.send_signal(signal.SIGCONT)
        await asyncio.gather(gateway.ended(), worker.ended())
        back = await FakeGateway(channel).connect([pb_acquire("a", waited_ms=6000)])
        await FakeWorker(channel).connect(granted=1)
        await back.until(lambda g: bool(g.heard["placement"]))
        assert back.heard["placement"][0].term > gateway.heard["welcome"][0].term


async def test_it_begins_with_the_quarantine_of_the_last_one_and_writes_what_changes(valkey_url: str) -> None:
    redis = connect(valkey_url, limit_s=20.0)
    kept = RedisQuarantine(redis)
    bad = b"\x01bad"
    await kept.keep({bad: 3600.0})
    async with scheduler_process("--redis-url", valkey_url) as one:
        where = f"127.0.0.1:{one.port}"

        async def has_it() -> bool:
            status = await queue_status(where)
            return status is not None and [one.digest for one in status.quarantine] == [bad.hex()]

        await eventually(has_it)

        async def is_forgotten() -> bool:
            # Released already, or too slow an answer: asked again.
            with contextlib.suppress(ServeError):
                await release_quarantine(where, bad)
            return not await kept.load()

        await eventually(is_forgotten)
    await redis.close()


async def test_without_an_answer_of_redis_it_serves_all_the_same() -> None:
    async with (
        scheduler_process("--redis-url", "redis://127.0.0.1:1/0") as one,
        create_channel(f"127.0.0.1:{one.port}") as channel,
    ):
        gateway = await FakeGateway(channel).connect([pb_acquire("a")])
        await FakeWorker(channel).connect(granted=1)
        await gateway.until(lambda g: bool(g.heard["placement"]))
