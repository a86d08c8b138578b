"""Known failures of gRPC in a process: forks after threads, and several loops around one poller."""

import ast
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from protos.gateway.v1 import gateway_pb2_grpc
from services.chassis.grpc import bind, create_server
from services.client import AsyncClient, Client
from tests.fakes.generate_service import SCRIPT_TEXT, FakeGenerateService

ROOT = Path(__file__).parents[2]
PACKAGES = ("services", "gateway", "scheduler", "kvmanager", "worker")

FORKS = {
    "os.fork", "os.forkpty", "pty.fork", "multiprocessing", "ProcessPoolExecutor", "preexec_fn",
}  # fmt: skip
LOOPS = {"asyncio.run", "asyncio.Runner", "asyncio.new_event_loop", "asyncio.set_event_loop"}
ENTRIES = {
    "services/chassis/lifecycle.py",
    "services/commands/doctor_facts.py",
    "services/commands/drain.py",
    "services/commands/release.py",
    "services/commands/status.py",
    "services/commands/tenant.py",
    "services/commands/top.py",
    "services/launcher/up.py",
}
"""What a process begins with: each makes the one loop of its process."""

CALLS = """
import sys
from services.client import Client
with Client(sys.argv[1], model="m") as client:
    for _ in range(50):
        print(client.generate_text("x").text)
"""


def names_in(source: str) -> Iterator[str]:
    """Every dotted name, import and keyword of a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr):
                yield f"{owner}.{attr}"
                yield attr
            case ast.Name(id=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Import(names=aliases):
                yield from (alias.name.split(".")[0] for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases):
                yield module.split(".")[0]
                for alias in aliases:
                    yield from (alias.name, f"{module}.{alias.name}")


def modules_that_name(wanted: set[str]) -> set[str]:
    words = {name.split(".")[-1] for name in wanted}
    found = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source = path.read_text()
        # Most modules hold none of the words; only the others are worth parsing.
        if any(word in source for word in words) and wanted & set(names_in(source)):
            found.add(str(path.relative_to(ROOT)))
    return found


@pytest.fixture
async def target() -> AsyncIterator[str]:
    server = create_server()
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(FakeGenerateService(), server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.mark.failure("B135")
def test_no_process_of_ours_is_forked() -> None:
    assert modules_that_name({"create_subprocess_exec"}) == {"services/launcher/supervisor.py"}
    assert modules_that_name(FORKS) == set()


@pytest.mark.failure("B135")
async def test_a_child_started_after_grpc_was_used_and_its_parent_both_call(target: str) -> None:
    async with AsyncClient(target, model="m") as client:
        assert (await client.generate_text("x")).text == SCRIPT_TEXT
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CALLS, target), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(50):
            assert (await client.generate_text("x")).text == SCRIPT_TEXT
        said, _ = await child.communicate()
        assert (await client.generate_text("x")).text == SCRIPT_TEXT
    assert child.returncode == 0
    assert said.decode().split("\n") == [SCRIPT_TEXT] * 50 + [""]


@pytest.mark.failure("B136")
def test_each_process_makes_one_event_loop_where_it_begins() -> None:
    assert modules_that_name(LOOPS) == ENTRIES


@pytest.mark.failure("B136")
async def test_threads_call_beside_the_loop_without_a_loop_of_their_own(target: str) -> None:
    def call_many() -> list[str]:
        with Client(target, model="m") as client:
            return [client.generate_text("x").text for _ in range(100)]

    async with AsyncClient(target, model="m") as client, asyncio.timeout(60):
        threads = [asyncio.create_task(asyncio.to_thread(call_many)) for _ in range(4)]
        answers = [(await client.generate_text("x")).text for _ in range(100)]
        for thread in threads:
            answers += await thread
    assert answers == [SCRIPT_TEXT] * 500
