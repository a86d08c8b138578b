"""Every service as a process of its own on any free port, with TLS on every hop or in plain text."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

START_LIMIT_S = 60.0
ADMIN_KEY = "admin key of this test only"


@dataclass
class Processes:
    """Where everybody listens."""

    events: dict[str, dict[str, object]] = field(default_factory=dict)
    """Name -> what it said when it served."""

    def address(self, name: str, port: str = "port") -> str:
        if name == "worker":
            return str(self.events[name]["address"])
        return f"127.0.0.1:{self.events[name][port]}"

    @property
    def probe_ports(self) -> dict[str, int]:
        """Port of each process's probes, by its role."""
        return {name: int(str(event["probe_port"])) for name, event in self.events.items()}

    @property
    def doors(self) -> dict[str, str]:
        """Address of each gRPC port that only peers and holders of certificates may call."""
        doors = {name: self.address(name) for name in ("scheduler", "kvmanager", "worker")}
        doors["admin"] = self.address("gateway", "admin_port")
        return doors


@contextlib.asynccontextmanager
async def processes(
    config: Path, model: Path, redis_url: str, *gateway_flags: str
) -> AsyncIterator[Processes]:
    """Start kvmanager, scheduler, a simulated worker and the gateway by one configuration file."""
    running = Processes()
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str, event: str, *flags: str) -> None:
            common = ("--config", str(config), "--port", "0", "--probe-port", "0")
            running.events[name] = await stack.enter_async_context(_process(name, event, *common, *flags))

        await start("kvmanager", "serving", "--redis-url", redis_url)
        kvmanager = ("--kvmanager", running.address("kvmanager"))
        await start("scheduler", "serving", *kvmanager, "--redis-url", redis_url)
        scheduler = ("--scheduler", running.address("scheduler"))
        await start(
            "worker", "serving", "--executor", "sim", "--model", f"sim={model}", *scheduler, *kvmanager
        )
        doors = ("--http-port", "0", "--admin-port", "0", *gateway_flags)
        redis = ("--redis-url", redis_url, "--redis-limit-ms", "5000")
        await start("gateway", "listening", "--model", f"sim={model}", *scheduler, *redis, *doors)
        yield running


@contextlib.asynccontextmanager
async def _process(name: str, event: str, *flags: str) -> AsyncIterator[dict[str, object]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", name, *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "QUIRE_GATEWAY_ADMIN_KEY": ADMIN_KEY},
    )
    assert process.stderr is not None
    reading = None
    try:
        told: dict[str, object] = {}
        async with asyncio.timeout(START_LIMIT_S):
            while told.get("event") != event:
                line = await process.stderr.readline()
                assert line, f"{name} ended"
                with contextlib.suppress(ValueError):
                    told = json.loads(line)
        reading = asyncio.create_task(process.stderr.read())
        yield told
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await (process.stderr.read() if reading is None else reading)
