"""`quire up` and Redis: its own comes back from a crash as it was; one elsewhere that is none is one line."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from services.chassis.fatal import ConfigError, FatalError
from services.chassis.redis import connect
from services.domain.errors import DependencyDown
from services.launcher.ports import Ports
from services.launcher.topology import Model, Suite, plan, redis_url
from services.launcher.up import find_redis
from tests.fakes.certificates import configuration, make_certs
from tests.fakes.valkey import eventually
from tests.integration.test_launcher_up import free_offset


async def test_the_embedded_redis_comes_back_from_a_crash_as_it_was(tmp_path: Path) -> None:
    suite = Suite(
        models=(Model("m", Path()),),
        num_workers=1,
        sim=True,
        python=sys.executable,
        ports=Ports(free_offset()),
        redis_binary=find_redis(),
        redis_folder=tmp_path,
    )
    (command,) = (process.command for process in plan(suite) if process.name == "redis")
    redis = connect(redis_url(suite), limit_s=20.0)

    async def answers() -> bool:
        with contextlib.suppress(DependencyDown):
            return bool(await redis.execute("PING"))
        return False

    async def started() -> asyncio.subprocess.Process:
        # Without its guard, so that it is the store itself that is killed.
        process = await asyncio.create_subprocess_exec(*command[command.index(suite.redis_binary) :])
        await eventually(answers)
        return process

    process = await started()
    try:
        await redis.execute("SET", "key", "order-1")
        process.kill()
        await process.wait()
        process = await started()
        assert await redis.execute("GET", "key") == b"order-1"
    finally:
        process.kill()
        await process.wait()
        await redis.close()


async def test_with_tls_a_plain_redis_elsewhere_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(configuration(make_certs(tmp_path / "certs")))
    environment = {**os.environ, "QUIRE_CACHE": str(tmp_path), "REDIS_URL": "redis://:secret@cache:6379/0"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "up", "--sim", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == ConfigError.exit_code
    assert err.startswith(b"error: redis_url must begin with rediss://")
    assert b"secret" not in err


async def test_a_redis_elsewhere_that_is_none_is_one_line(tmp_path: Path) -> None:
    async def answer_as_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_as_http, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"redis://127.0.0.1:{port}/0"
        flags = ("--sim", "--model", "sim", "--port-offset", str(free_offset()))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "up", *flags),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "QUIRE_CACHE": str(tmp_path), "REDIS_URL": url},
        )
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == FatalError.exit_code
    said = f"error: the Redis of REDIS_URL at 127.0.0.1:{port} answers, but not as Redis does"
    assert err.decode().startswith(said)
    assert err.count(b"\n") == 1
