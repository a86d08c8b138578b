"""One suite of real processes: `quire up` as a child, seen from outside.

Knows its processes, ports, metrics and Redis keys; knows nothing of what is tested.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from services.artifacts.model_cache import cache_folder
from services.chassis.fatal import BusyPort
from services.chassis.lifecycle import LIFELINE_VARIABLE
from services.client import AsyncClient
from services.launcher.ports import Ports
from services.rpc.fleet_status import QueueStatus, WorkerStatus, queue_status, worker_statuses
from tests.e2e.stack_setup import KEYS, MODEL, Setup

TRIES = 3
"""Times that a start is tried with other ports, should somebody take one meanwhile."""


class Samples:
    """The metrics of one process at one moment."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def sum(self, name: str, **labels: str) -> float:
        """Add up all series of `name` with these labels; none is 0."""
        wanted = labels.items()
        return sum(s.value for s in self._samples if s.name == name and wanted <= s.labels.items())


class Stack:
    """A running suite; see `running`."""

    def __init__(self, setup: Setup, model_path: Path, folder: Path) -> None:
        self.setup = setup
        self.model_path = model_path
        self.folder = folder
        self.ports = Ports()
        self.launcher: subprocess.Popen[bytes] | None = None
        self.trace_file = folder / "spans.jsonl"
        # Libraries are compiled once for all tests.
        compiled = cache_folder(os.environ) / "native"
        compiled.mkdir(parents=True, exist_ok=True)
        (folder / "native").symlink_to(compiled)
        self._config = folder / "quire.toml"
        self._config.write_text(setup.file)
        self._extra: list[subprocess.Popen[bytes]] = []
        self._lifeline_read, self._lifeline_write = os.pipe()

    def start(self) -> None:
        """Return when the launcher says that it is ready."""
        for _ in range(TRIES):
            self.ports = Ports(random.randrange(1000, 14_000, 50))
            self.launcher = self._launch()
            if self._is_ready():
                return
            if self.launcher.wait(self.setup.up_limit_s) != BusyPort.exit_code:
                break
        raise AssertionError(f"the suite did not come up: {(self.folder / 'up.log').read_text()}")

    def _launch(self) -> subprocess.Popen[bytes]:
        words = ["--model", f"{MODEL}={self.model_path}", "--config", str(self._config)]
        words += ["--workers", str(self.setup.num_workers), "--port-offset", str(self.ports.offset)]
        words += ["--kv-memory", str(self.setup.kv_memory)]
        if self.setup.is_sim:
            words.append("--sim")
        if self.setup.is_traced:
            words += ["--trace", f"file:{self.trace_file}"]
        environment = {**os.environ, "QUIRE_CACHE": str(self.folder)}
        environment.pop("REDIS_URL", None)
        # The guard ends the launcher when this process is gone, whatever the reason.
        environment[LIFELINE_VARIABLE] = str(self._lifeline_read)
        with (self.folder / "up.log").open("wb") as log:
            return subprocess.Popen(
                [*_GUARDED, sys.executable, "-m", "services.cli", "up", *words],
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(self._lifeline_read,),
            )

    def _is_ready(self) -> bool:
        assert self.launcher is not None
        deadline = time.monotonic() + self.setup.up_limit_s
        while self.launcher.poll() is None and time.monotonic() < deadline:
            if b"\nready\n" in (self.folder / "up.log").read_bytes():
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """End everything, the quick way; nothing is left."""
        family = self.family()
        os.close(self._lifeline_write)
        for child in (*family, *self._extra):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        for child in self._extra:
            child.wait()
        if self.launcher is not None:
            self.launcher.kill()
            self.launcher.wait()
        psutil.wait_procs(family, timeout=60)
        os.close(self._lifeline_read)

    def family(self) -> list[psutil.Process]:
        """Return the launcher and all its processes."""
        if self.launcher is None:
            return []
        try:
            return psutil.Process(self.launcher.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def process(self, name: str) -> psutil.Process:
        """Return the process of that name now: up, redis, kvmanager, scheduler, gateway, worker-N."""
        words = {"up": ["services.cli"], "redis": ["--appendonly"]}.get(
            name, ["worker", name] if name.startswith("worker-") else [name]
        )
        for one in self.family():
            with contextlib.suppress(psutil.Error):
                line = one.cmdline()
                if set(words) <= set(line) and "services.launcher.guard" not in line:
                    return one
        raise ProcessLookupError(name)

    def start_gateway(self, name: str, *, port: int, probe_port: int) -> subprocess.Popen[bytes]:
        """Start one more gateway; `client` reaches it by `port`."""
        ports = self.ports
        flags = ["--name", name, "--port", str(port), "--probe-port", str(probe_port), "--http-port", "0"]
        flags += ["--scheduler", f"127.0.0.1:{ports.scheduler}", "--config", str(self._config)]
        flags += ["--redis-url", self.redis_url, "--model", f"{MODEL}={self.model_path}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, LIFELINE_VARIABLE: str(self._lifeline_read)},
                pass_fds=(self._lifeline_read,),
            )
        self._extra.append(process)
        return process

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.ports.redis}/0"

    @property
    def pool(self) -> int:
        """KV pages of all workers."""
        return self.setup.num_pages * self.setup.num_workers

    def client(
        self, tenant: str | None = None, *, port: int | None = None, traceparent: str | None = None
    ) -> AsyncClient:
        """Return a client of one tenant; None is the tenant without a key."""
        return AsyncClient(
            f"127.0.0.1:{port or self.ports.gateway}",
            api_key=None if tenant is None else KEYS[tenant],
            model=MODEL,
            timeout_s=60,
            metadata=None if traceparent is None else {"traceparent": traceparent},
        )

    def probe_port(self, name: str) -> int:
        if name.startswith("worker-"):
            return self.ports.worker_probe(int(name.removeprefix("worker-")))
        port: int = getattr(self.ports, f"{name}_probe")()
        return port

    async def metrics(self, name: str) -> Samples:
        """Read the metrics of one process.

        Raises:
            OSError: It does not answer.
        """
        return Samples(await asyncio.to_thread(_get, f"http://127.0.0.1:{self.probe_port(name)}/metrics"))

    async def workers(self) -> list[WorkerStatus]:
        """Ask all workers for their counts.

        Raises:
            OSError: One does not answer.
        """
        found = await worker_statuses(
            [f"127.0.0.1:{self.ports.worker(index)}" for index in range(self.setup.num_workers)]
        )
        if None in found:
            raise ConnectionError("a worker does not answer")
        return [one for one in found if one is not None]

    async def queue(self) -> QueueStatus:
        """Ask the scheduler.

        Raises:
            OSError: It does not answer.
        """
        found = await queue_status(f"127.0.0.1:{self.ports.scheduler}")
        if found is None:
            raise ConnectionError("the scheduler does not answer")
        return found

    @contextlib.asynccontextmanager
    async def redis(self) -> AsyncIterator[Redis]:
        """Connect to the stack's Redis."""
        client = Redis.from_url(self.redis_url)
        try:
            yield client
        finally:
            await client.aclose()


_GUARDED = (sys.executable, "-m", "services.launcher.guard")


def _get(url: str) -> str:
    with urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


@contextlib.contextmanager
def running(setup: Setup, model_path: Path, folder: Path) -> Iterator[Stack]:
    """Bring a stack up, and leave none of its processes whatever happens."""
    stack = Stack(setup, model_path, folder)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
