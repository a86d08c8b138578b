"""What a machine is like: everything that `quire doctor` judges, each as plain values.

Looks, and changes nothing: no folder is made, nothing is fetched or compiled. What is good or bad about a
fact is `doctor_checks`' to say. A fact that a system does not tell is None.
"""

import asyncio
import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from services.artifacts.errors import ArtifactError
from services.artifacts.model_cache import MARKER, cache_folder, check_whole
from services.chassis.cores import num_cores
from services.chassis.fatal import FatalError
from services.chassis.grpc import require_free_port
from services.chassis.redis import connect
from services.chassis.tls import OPERATOR, load_tls
from services.domain.errors import DependencyDown
from services.launcher.ports import LOOPBACK, Ports
from services.launcher.topology import Model, Suite, plan
from services.launcher.up import find_redis
from worker.amd_driver import AmdDriver, read_amd_driver
from worker.devices import DeviceMemory, DeviceNodes, NoDevice, device_nodes, find_device, has_c_compiler
from worker.executors.native.build import NoCompiler, find_compiler
from worker.executors.native.instruction_sets import this_cpu
from worker.memory import free_memory_bytes
from worker.nvml import NvmlError, open_nvml

REDIS_LIMIT_S = 2.0
"""Seconds that a Redis elsewhere has to answer."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CLOCK_UNSYNCHRONISED = 0x40
_TIMEX_STATUS_OFFSET, _TIMEX_BYTES = 40, 208


@dataclass(frozen=True, slots=True)
class RedisFact:
    """The Redis that `quire up` would use."""

    where: str
    """host:port, or the program that would be started."""
    error: str | None = None
    """Why it cannot be used."""
    version: str | None = None
    policy: str | None = None
    """What it does when its memory is full; only of one that runs already."""
    clock_ahead_s: float | None = None
    """Its clock less ours."""


@dataclass(frozen=True, slots=True)
class CacheFact:
    """Where models and compiled code lie."""

    folder: str
    is_writable: bool
    free_bytes: int
    models: Mapping[str, str | None]
    """Every fetched model, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One machine, as this process sees it."""

    nodes: DeviceNodes
    driver: str | None
    """NVIDIA's, with the GPUs that it shows; None where its library does not answer."""
    driver_error: str | None
    amd: AmdDriver | None
    """None without `/dev/kfd`."""
    packages: Mapping[str, str | None]
    """torch and triton: the version, None where it is not installed."""
    triton_backends: tuple[str, ...]
    """Makers for whose GPUs the installed Triton compiles: `amd`, `nvidia`."""
    has_c_compiler: bool
    """Whether Triton finds one."""
    gpu: str | None
    """The device that kernels would run on."""
    gpu_memory: DeviceMemory | None
    gpu_error: str | None
    """Why there is none."""
    compiler: str | None
    compiler_error: str | None
    cpu: str
    instruction_sets: tuple[str, ...]
    """Best first."""
    num_cores: int
    huge_pages: str | None
    """always, madvise or never."""
    free_bytes: int
    """Of memory, within the container's limit."""
    ports: Mapping[str, tuple[int, ...]]
    """What each process of a suite of one worker listens on."""
    busy: Mapping[int, str]
    """Ports that cannot be had, and why."""
    is_clock_synchronised: bool | None
    redis: RedisFact
    cache: CacheFact


def look(port_offset: int, environment: Mapping[str, str] = os.environ) -> Facts:
    """Gather all facts; imports torch only where there is a GPU."""
    nodes = device_nodes()
    driver, driver_error = _driver()
    gpu, gpu_memory, gpu_error = _gpu()
    compiler, compiler_error = _compiler(environment)
    url = environment.get("REDIS_URL") or None
    ports = _ports(port_offset, url)
    cpu = this_cpu()
    return Facts(
        nodes=nodes,
        driver=driver,
        driver_error=driver_error,
        amd=read_amd_driver(),
        packages={name: _version(name) for name in ("torch", "triton")},
        triton_backends=_triton_backends(),
        has_c_compiler=has_c_compiler(environment),
        gpu=gpu,
        gpu_memory=gpu_memory,
        gpu_error=gpu_error,
        compiler=compiler,
        compiler_error=compiler_error,
        cpu=cpu.name,
        instruction_sets=tuple(entry.name for entry in cpu.supported()),
        num_cores=num_cores(),
        huge_pages=_huge_pages(),
        free_bytes=free_memory_bytes(),
        ports=ports,
        busy=_busy(ports),
        is_clock_synchronised=_is_clock_synchronised(),
        redis=asyncio.run(ask_redis(url, environment)),
        cache=look_into_cache(cache_folder(environment)),
    )


def _driver() -> tuple[str | None, str | None]:
    try:
        nvml = open_nvml()
        names = [gpu.name for gpu in nvml.gpus()]
        return f"NVIDIA {nvml.driver_version} with {', '.join(names) or 'no GPU'}", None
    except NvmlError as exc:
        return None, str(exc)


def _gpu() -> tuple[str | None, DeviceMemory | None, str | None]:
    try:
        device = find_device()
        return device.label, device.memory(), None
    except NoDevice as exc:
        return None, None, str(exc)


def _triton_backends() -> tuple[str, ...]:
    """Return the folders of Triton's backends; imports nothing."""
    spec = importlib.util.find_spec("triton")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    return tuple(
        sorted(path.parent.name for folder in folders for path in folder.glob("backends/*/driver.py"))
    )


def _compiler(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    try:
        path = find_compiler(environment)
    except NoCompiler as exc:
        return None, str(exc)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        return None, f"{path} does not run ({exc})"
    return (done.stdout.splitlines() or [path])[0], None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _huge_pages(path: Path = _HUGE_PAGES) -> str | None:
    """Return the word in brackets: `always [madvise] never`."""
    try:
        return path.read_text().partition("[")[2].partition("]")[0] or None
    except OSError:
        return None


def _ports(offset: int, redis_url: str | None) -> Mapping[str, tuple[int, ...]]:
    suite = Suite(
        models=(Model("any", Path()),),
        num_workers=1,
        sim=True,
        python="",
        ports=Ports(offset),
        redis_url=redis_url,
        redis_binary="",
        redis_folder=Path(),
    )
    return {process.name: process.ports for process in plan(suite)}


def _busy(ports: Mapping[str, tuple[int, ...]]) -> dict[int, str]:
    busy = {}
    for port in (port for group in ports.values() for port in group):
        try:
            require_free_port(LOOPBACK, port)
        except FatalError as exc:
            busy[port] = str(exc)
    return busy


def _is_clock_synchronised() -> bool | None:
    """Ask the kernel whether something disciplines the clock; changes nothing (`modes` is 0).

    Source: adjtimex(2).
    """
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    timex = (ctypes.c_ubyte * _TIMEX_BYTES)()
    if ctypes.CDLL(None).adjtimex(timex) < 0:
        return None
    status = ctypes.c_int.from_buffer(timex, _TIMEX_STATUS_OFFSET).value
    return not status & _CLOCK_UNSYNCHRONISED


async def ask_redis(url: str | None, environment: Mapping[str, str] = os.environ) -> RedisFact:
    """Ask the Redis at `url`, whose password is not repeated; None: find the one that we would start.

    Args:
        environment: QUIRE_CONFIG or QUIRE_TLS_... name what a Redis with TLS is asked with.
    """
    if url is None:
        try:
            return RedisFact(find_redis())
        except FatalError as exc:
            return RedisFact("none", error=str(exc))
    try:
        store = connect(url, limit_s=REDIS_LIMIT_S, tls=load_tls(OPERATOR, (), environment))
    except FatalError as exc:
        return RedisFact("REDIS_URL", error=str(exc))
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    try:
        info, (seconds, micros) = await store.execute("INFO"), await store.execute("TIME")
    except DependencyDown as exc:
        return RedisFact(where, error=f"{where} does not answer ({exc})")
    finally:
        await store.close()
    fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    ahead = int(seconds) + int(micros) / 1e6 - time.time()
    return RedisFact(where, None, fields.get("redis_version"), fields.get("maxmemory_policy"), ahead)


def look_into_cache(folder: Path) -> CacheFact:
    """Look at the cache folder, which need not be there, and at every model in it."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    models: dict[str, str | None] = {}
    for marker in sorted((folder / "models").glob(f"*/{MARKER}")):
        try:
            check_whole(folder, marker.parent.name)
            models[marker.parent.name] = None
        except ArtifactError as exc:
            models[marker.parent.name] = str(exc)
    return CacheFact(
        str(folder),
        nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
        shutil.disk_usage(nearest).free,
        models,
    )
