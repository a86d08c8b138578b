"""`quire up` as a user starts it: all five kinds of process, simulated model, real ports."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from services.chassis.fatal import BusyPort
from services.launcher.ports import Ports
from services.launcher.supervisor import check_ports
from services.launcher.topology import REDIS_LOG, Model, Suite, plan
from tests.fakes.certificates import configuration, make_certs, metrics_of
from tests.fakes.valkey import eventually

UP_LIMIT_S = 90.0


def free_offset() -> int:
    """Return a port offset whose ports were all free a moment ago."""
    for offset in random.sample(range(1000, 14_000, 50), 50):
        with contextlib.suppress(BusyPort):
            check_nothing_listens(offset)
            return offset
    pytest.fail("no free ports")


def check_nothing_listens(offset: int) -> None:
    """Raise `BusyPort` if any port of a suite at `offset` is taken."""
    suite = Suite(
        models=[Model("m", Path())],
        num_workers=2,
        sim=True,
        python="",
        ports=Ports(offset),
        redis_binary="",
        redis_folder=Path(),
    )
    check_ports(plan(suite), "127.0.0.1")


@dataclass(slots=True)
class Launcher:
    """One `quire up` and what it prints."""

    process: asyncio.subprocess.Process
    ports: Ports
    environment: dict[str, str]

    async def ready(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(UP_LIMIT_S):
            async for line in self.process.stdout:
                if line == b"ready\n":
                    return
        pytest.fail("ended without being ready")

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def quire(self, *words: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", *words, "--port-offset", str(self.ports.offset)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def end(self) -> tuple[int, str]:
        """Return exit code and stderr."""
        _, err = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


@contextlib.asynccontextmanager
async def launch(cache: Path, *words: str) -> AsyncIterator[Launcher]:
    ports = Ports(free_offset())
    environment = {**os.environ, "QUIRE_CACHE": str(cache)}
    environment.pop("REDIS_URL", None)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "up", "--port-offset", str(ports.offset), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    launcher = Launcher(process, ports, environment)
    try:
        yield launcher
    finally:
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = launcher.family()
        if process.returncode is None:
            process.kill()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        # A transport that is left open complains from whichever test the collector runs in.
        await asyncio.wait_for(process.communicate(), 60)


async def none_left(family: list[psutil.Process]) -> None:
    deadline = time.monotonic() + UP_LIMIT_S
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family):
        assert time.monotonic() < deadline, [process for process in family if process.is_running()]
        await asyncio.sleep(0.05)


async def top_has_tokens(launcher: Launcher) -> bool:
    """`quire top` shows the tokens of the tenant that asked."""
    code, out, _ = await launcher.quire("top", "--once", "--json", "--every", "0.1")
    tenants = {row["tenant"]: row["total_tokens"] for row in json.loads(out)["tenants"]}
    return code == 0 and tenants.get("local", 0) >= 8


async def test_it_comes_up_serves_and_drains(tmp_path: Path) -> None:
    async with launch(tmp_path, "--sim", "--model", "sim", "--workers", "2") as launcher:
        await launcher.ready()
        family = launcher.family()
        assert len(family) == 7  # Redis and its guard, kvmanager, scheduler, two workers, gateway.
        code, out, err = await launcher.quire("generate", "--max-tokens", "8", "Hello")
        assert code == 0
        assert out.strip()
        assert "8 output tokens" in err
        code, out, _ = await launcher.quire("status", "--json")
        status = json.loads(out)
        assert code == 0
        assert [worker["name"] for worker in status["workers"]] == ["worker-0", "worker-1"]
        assert sum(worker["decode_tokens"] for worker in status["workers"]) >= 7
        await eventually(lambda: top_has_tokens(launcher), limit_s=UP_LIMIT_S)
        launcher.process.send_signal(signal.SIGTERM)
        assert (await launcher.end())[0] == 0
        await none_left(family)
        left = {path.name for path in (tmp_path / "run" / "latest").iterdir()}
        assert left >= {"gateway.log", "redis.log"}
        assert REDIS_LOG not in left


async def test_told_twice_it_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    """Redis too, which its guard has to end: a guard that is killed first could not."""
    async with launch(tmp_path, "--sim", "--model", "sim") as launcher:
        await launcher.ready()
        family = launcher.family()
        # One that cannot drain, so that the first signal alone ends nothing.
        (gateway,) = (child for child in family if "gateway" in child.cmdline())
        gateway.send_signal(signal.SIGSTOP)
        launcher.process.send_signal(signal.SIGINT)
        launcher.process.send_signal(signal.SIGTERM)
        assert (await launcher.end())[0] == 130
        await none_left(family)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a folder whose path has room for a socket's name, which may have 103 bytes in all."""
    with tempfile.TemporaryDirectory(prefix="quire-", dir="/tmp") as folder:
        yield Path(folder)


async def test_with_tls_it_comes_up_and_its_commands_work(tmp_path: Path, short_path: Path) -> None:
    config = tmp_path / "quire.toml"
    certs = make_certs(tmp_path / "certs")
    config.write_text(configuration(certs))
    with_tls = ("--config", str(config))
    async with launch(short_path, "--sim", "--model", "sim", *with_tls) as launcher:
        await launcher.ready()
        code, _, err = await launcher.quire("generate", "--max-tokens", "8", "Hello", *with_tls)
        assert code == 0
        assert "8 output tokens" in err
        assert (await launcher.quire("tenant", "show", "local", *with_tls))[0] == 0
        # Our Redis has no TLS: nobody reaches it through the network, and its socket only its user.
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", launcher.ports.redis)
        redis = short_path / "run" / "latest" / "redis.sock"
        assert stat.S_IMODE(redis.stat().st_mode) == 0o700
        assert (await metrics_of("worker", launcher.ports.worker_probe(0), None, ca=certs / "ca.pem")) == 403

        async def all_are_up() -> bool:
            code, out, _ = await launcher.quire("status", "--json", *with_tls)
            return code == 0 and "worker-0" in json.loads(out)["up"]

        await eventually(all_are_up, limit_s=UP_LIMIT_S)
        code, out, _ = await launcher.quire("status", "--json")
        assert code == 1
        assert set(json.loads(out)["up"].values()) == {False}


async def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    offset = free_offset()
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", Ports(offset).http))
        holder.listen()
        async with launch(tmp_path, "--sim", "--model", "sim", "--port-offset", str(offset)) as launcher:
            code, err = await launcher.end()
    assert code == BusyPort.exit_code
    assert f"port {Ports(offset).http} " in err
    assert err.count("\n") == 1


async def test_too_little_memory_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    async with launch(tmp_path, "--sim", "--model", "sim", "--kv-memory", "1kB") as launcher:
        code, err = await launcher.end()
        assert code == 1
        assert err.startswith("error: worker-0: ")
        assert err.count("\n") == 1
    check_nothing_listens(launcher.ports.offset)


async def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    cache = tmp_path / "a file"
    cache.write_text("not a folder")
    async with launch(cache, "--sim", "--model", "sim") as launcher:
        code, err = await launcher.end()
    assert code == 1
    assert err.startswith(f"error: the cache folder {cache} cannot be written")
    assert "QUIRE_CACHE" in err
    assert err.count("\n") == 1
    check_nothing_listens(launcher.ports.offset)


@pytest.mark.slow
async def test_a_damaged_model_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    async with launch(tmp_path, "--model", str(damaged)) as launcher:
        code, err = await launcher.end()
        assert code == 1
        assert "damaged" in err
        assert err.count("\n") == 1
    check_nothing_listens(launcher.ports.offset)


@pytest.fixture
def cut(model_path: Path, tmp_path: Path) -> Path:
    """The real model but for its end: header, tokenizer and most tensors are whole."""
    path = tmp_path / "cut.gguf"
    with model_path.open("rb") as whole, path.open("wb") as part:
        part.write(whole.read(model_path.stat().st_size * 9 // 10))
    return path


@pytest.mark.slow
async def test_a_real_model_cut_short_is_named_and_leaves_nothing(cut: Path, tmp_path: Path) -> None:
    async with launch(tmp_path, "--model", str(cut)) as launcher:
        code, err = await launcher.end()
        assert code == 1
        assert f"{cut}: truncated, tensor blk." in err
        assert err.count("\n") == 1
    check_nothing_listens(launcher.ports.offset)


@pytest.mark.slow
async def test_too_little_memory_for_a_real_model_is_said_before_anything_is_compiled_or_packed(
    model_path: Path, tmp_path: Path
) -> None:
    async with launch(tmp_path, "--model", str(model_path), "--kv-memory", "100kB") as launcher:
        code, err = await launcher.end()
        assert code == 1
        assert err.startswith("error: worker-0: no KV page of ")
        assert "raise --kv-memory" in err
        assert err.count("\n") == 1
    check_nothing_listens(launcher.ports.offset)
    assert not (tmp_path / "native").exists()
    assert not (tmp_path / "packed").exists()
