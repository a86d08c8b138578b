"""One run of the suite on a terminal: bring it up, say so, answer one prompt if asked, end it on a signal.

Knows signals and what is printed when; the supervisor knows processes.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from services.chassis.fatal import FatalError
from services.chassis.redis import connect
from services.chassis.redis_trouble import what_to_mend
from services.chassis.tls import Tls
from services.client import AsyncClient, Message, ServeError
from services.commands.output import write_text
from services.domain.errors import DependencyDown
from services.launcher.board import LiveBoard, PlainBoard
from services.launcher.calls import (
    EXAMPLE_PROMPT,
    EXAMPLE_TOKENS,
    endpoint_lines,
    example_calls,
    indent,
    receipt_lines,
)
from services.launcher.ports import LOOPBACK
from services.launcher.supervisor import Supervisor
from services.launcher.topology import Suite, plan, redis_socket

MODELS_LIMIT_S = 60.0
"""Seconds from all processes up until the gateway lists every model."""
ASK_EVERY_S = 0.1
EXTERNAL_REDIS_LIMIT_S = 3.0


class Session:
    """Owns the supervisor and the terminal of one `quire up`."""

    def __init__(
        self, suite: Suite, folder: Path, console: Console, *, demo: bool, tls: Tls | None = None
    ) -> None:
        self._suite = suite
        self._folder = folder
        self._console = console
        self._demo = demo
        self._tls = tls
        self._board = LiveBoard(console) if console.is_terminal else PlainBoard(console)
        self._stopping = asyncio.Event()
        self._supervisor = Supervisor(plan(suite), folder, self._board, host=suite.host, tls=tls)

    async def serve(self) -> int:
        """Serve until a signal; return the exit code.

        Raises:
            FatalError: It did not come up; nothing is left running.
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._on_signal)
        up = asyncio.Event()
        greeting: asyncio.Task[None] | None = None
        try:
            await self._check_external_redis()
            greeting = asyncio.create_task(self._greet(up), name="greeting")
            await self._supervise_until_end(up, greeting)
        finally:
            self._board.settle()
            if greeting is not None:
                greeting.cancel()
                await asyncio.gather(greeting, return_exceptions=True)
        return 0

    async def _supervise_until_end(self, up: asyncio.Event, greeting: asyncio.Task[None]) -> None:
        """Run the children; a greeting that fails (no model is ever listed) ends them too."""
        supervising = asyncio.create_task(self._supervisor.run(up, self._stopping), name="supervisor")
        done, _ = await asyncio.wait({supervising, greeting}, return_when=asyncio.FIRST_COMPLETED)
        if greeting in done and greeting.exception() is not None:
            self._stopping.set()
            await supervising
            greeting.result()
        await supervising

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            self._supervisor.kill_all()
            os._exit(130)
        self._board.settle()
        self._say("stopping: what runs may finish (once more to stop at once)")
        self._stopping.set()

    async def _greet(self, up: asyncio.Event) -> None:
        await up.wait()
        client = AsyncClient(
            self._target(), credentials=None if self._tls is None else self._tls.channel_credentials()
        )
        try:
            await self._await_models(client)
            self._board.settle()
            self._say("ready")
            if self._demo:
                await self._show_answer(client)
        finally:
            await client.close()
        self._show_doors()

    async def _await_models(self, client: AsyncClient) -> None:
        """Wait until the gateway can place a request for every model."""
        wanted = {model.name for model in self._suite.models}
        served: set[str] = set()
        try:
            async with asyncio.timeout(MODELS_LIMIT_S):
                while not wanted <= served:
                    with contextlib.suppress(ServeError):
                        served = {model.name for model in await client.models() if model.num_workers}
                    await asyncio.sleep(ASK_EVERY_S)
        except TimeoutError as exc:
            missing = ", ".join(sorted(wanted - served))
            raise FatalError(f"no worker serves {missing} (logs: {self._folder})") from exc

    async def _show_answer(self, client: AsyncClient) -> None:
        model = self._suite.models[0].name
        self._say(f"\n> {EXAMPLE_PROMPT}")
        messages = [Message("user", EXAMPLE_PROMPT)]
        try:
            stream = client.generate(messages, model=model, temperature=0.0, max_output_tokens=EXAMPLE_TOKENS)
            async with stream:
                async for piece in stream.text():
                    write_text(piece)
            assert stream.receipt is not None
            self._say("\n" + indent(receipt_lines(stream.receipt)))
        except ServeError as error:
            if not self._stopping.is_set():
                self._say(f"\nno answer: {error.message} ({error.reason})")

    def _show_doors(self) -> None:
        suite = self._suite
        own = redis_socket(suite) or f"127.0.0.1:{suite.ports.redis}"
        redis = "redis (yours)" if suite.redis_url else f"redis {own}"
        lines = endpoint_lines(
            self._public_host(), suite.ports, suite.num_workers, redis=redis, has_tls=suite.has_tls
        )
        ca = None if self._tls is None else str(self._tls.files.ca)
        self._say("\nendpoints\n" + indent([*lines, f"logs       {self._folder}"]))
        for title, call in example_calls(_program(), suite.models[0].name, suite.ports, ca=ca):
            self._say(f"\n{title}\n{indent([call])}")
        self._say("\nserving until Ctrl-C")

    async def _check_external_redis(self) -> None:
        if self._suite.redis_url is None:
            return
        where = urlsplit(self._suite.redis_url)
        store = connect(self._suite.redis_url, limit_s=EXTERNAL_REDIS_LIMIT_S, tls=self._tls)
        try:
            await store.execute("PING")
        except DependencyDown as exc:
            raise FatalError(
                f"the Redis of REDIS_URL at {where.hostname}:{where.port} {what_to_mend(exc)}, "
                "or unset REDIS_URL"
            ) from exc
        finally:
            await store.close()

    def _target(self) -> str:
        return f"{self._public_host()}:{self._suite.ports.gateway}"

    def _public_host(self) -> str:
        return LOOPBACK if self._suite.host in ("0.0.0.0", "::") else self._suite.host

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _program() -> str:
    """Return how this program was called, as short as it can be pasted."""
    called = Path(sys.argv[0])
    if called.suffix == ".py":
        return "quire"
    with contextlib.suppress(ValueError):
        return str(called.resolve().relative_to(Path.cwd()))
    return called.name
