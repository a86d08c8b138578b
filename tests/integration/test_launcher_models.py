"""`quire up` with two models, a Redis of the user's own, a demo and traces, and the calls that it prints."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from redis import Redis

from services.chassis.fatal import BusyPort
from services.client import Client
from services.launcher.ports import Ports
from tests.fakes.otlp_collector import Collector, collecting
from tests.integration.test_launcher_up import UP_LIMIT_S, free_offset

TRIES = 3
MODELS = ("alpha", "beta")
WORDS = ("--sim", "--demo", "--trace", "otlp", "--model", "alpha", "--model", "beta")


@dataclass(frozen=True, slots=True)
class Suite:
    """A running suite and what its launcher has printed."""

    process: subprocess.Popen[bytes]
    ports: Ports
    log: Path
    redis_url: str
    collector: Collector

    @property
    def printed(self) -> str:
        return self.log.read_text()

    @property
    def gateway(self) -> str:
        return f"127.0.0.1:{self.ports.gateway}"

    def call(self, title: str) -> list[str]:
        """Return the words of the command line that was printed last under `title`."""
        lines = self.printed.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
        return shlex.split(lines[-1])


@pytest.fixture(scope="module")
def suite(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("up")
    redis_url = valkey_url.removesuffix("/0") + "/7"
    with collecting() as collector:
        environment = {**os.environ, "QUIRE_CACHE": str(folder), "REDIS_URL": redis_url}
        environment |= collector.environment
        for _ in range(TRIES):
            started = start(folder, environment, redis_url, collector)
            family: list[psutil.Process] = []
            try:
                if is_up(started):
                    family = psutil.Process(started.process.pid).children(recursive=True)
                    yield started
                    return
            finally:
                started.process.kill()
                code = started.process.wait()
                psutil.wait_procs(family, timeout=60)
            assert code == BusyPort.exit_code, started.printed


def start(folder: Path, environment: dict[str, str], redis_url: str, collector: Collector) -> Suite:
    ports = Ports(free_offset())
    log = folder / "up.log"
    words = ("-m", "services.cli", "up", "--port-offset", str(ports.offset), *WORDS)
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file, env=environment)
    return Suite(process, ports, log, redis_url, collector)


def is_up(suite: Suite) -> bool:
    """Wait until everything is printed; False when it ended before."""
    deadline = time.monotonic() + UP_LIMIT_S
    while "serving until Ctrl-C" not in suite.printed:
        if suite.process.poll() is not None:
            return False
        assert time.monotonic() < deadline, suite.printed
        time.sleep(0.05)
    return True


def test_what_comes_up_says_what_it_waits_for_and_then_where_it_is(suite: Suite) -> None:
    before, ready, _ = suite.printed.partition("\nready\n")
    assert ready
    for waits in (
        "scheduler: starting, waits for kvmanager",
        "worker-0: starting, waits for scheduler, kvmanager",
        "worker-1: starting, waits for scheduler, kvmanager",
        "gateway: starting, waits for scheduler",
    ):
        name = waits.partition(":")[0]
        assert f"] {waits}\n" in before
        assert f"] {name}: up on port " in before.partition(waits)[2]


def test_the_demo_streams_an_answer_with_its_receipt(suite: Suite) -> None:
    demo = suite.printed.partition("\nready\n")[2].partition("\nendpoints\n")[0]
    assert "96 output tokens" in demo
    assert "page-seconds" in demo
    answer = demo.partition("output tokens")[0]
    assert len(answer.split()) > 20


def test_two_models_answer_each_on_its_own_worker(suite: Suite) -> None:
    with Client(suite.gateway, timeout_s=60) as client:
        assert sorted(model.name for model in client.models()) == sorted(MODELS)
        workers = []
        for model in MODELS:
            whole = client.generate_text("Hello", model=model, max_output_tokens=4, ignore_eos=True)
            assert whole.receipt.usage.output_tokens == 4
            workers.append(whole.receipt.worker)
    assert workers == ["worker-0", "worker-1"]


def test_the_redis_of_redis_url_is_used_and_none_is_started(suite: Suite) -> None:
    names = [one.name() for one in psutil.Process(suite.process.pid).children(recursive=True)]
    assert len(names) == 5  # kvmanager, scheduler, two workers, gateway.
    assert not [name for name in names if "redis" in name or "valkey" in name]
    with Client(suite.gateway, model="alpha", timeout_s=60) as client:
        client.generate_text("Hello", max_output_tokens=4)
    with Redis.from_url(suite.redis_url) as redis:
        deadline = time.monotonic() + 60
        while not list(redis.scan_iter("quire:quota:*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert "redis (yours)" in suite.printed


def test_every_door_names_its_services_by_reflection(suite: Suite) -> None:
    ports = suite.ports
    doors = {
        ports.gateway: "protos.gateway.v1.GenerateService",
        ports.admin: "protos.admin.v1.AdminService",
        ports.scheduler: "protos.scheduler.v1.SchedulerService",
        ports.kvmanager: "protos.kvmanager.v1.KvManagerService",
        ports.worker(0): "protos.worker.v1.WorkerService",
    }
    for port, service in doors.items():
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = stub.ServerReflectionInfo(iter([question]), timeout=60)
            named = {one.name for one in answer.list_services_response.service}
            assert {service, "grpc.health.v1.Health"} <= named


def test_the_printed_call_of_buf_works_by_reflection_alone(suite: Suite, tmp_path: Path) -> None:
    buf = shutil.which("buf", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    assert buf is not None, "buf-bin is a development dependency"
    program, *words = suite.call("gRPC by reflection, with grpcurl or with buf")
    assert program == "buf"
    # In a folder without our protos, so that only the server can have named the messages.
    done = subprocess.run(
        [buf, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    events = [next(iter(message)) for message in messages_of(done.stdout)]
    assert "delta" in events
    assert events[-1] == "receipt"


def messages_of(text: str) -> list[dict[str, object]]:
    """Read JSON objects that follow each other."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text.rstrip()):
        message, position = decoder.raw_decode(text, position)
        found.append(message)
        while position < len(text) and text[position].isspace():
            position += 1
    return found


def test_the_other_printed_calls_work(suite: Suite) -> None:
    program, *words = suite.call("our own client")
    assert program == "quire"
    own = [sys.executable, "-m", "services.cli", *words]
    done = subprocess.run(own, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "96 output tokens" in done.stderr
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    words = suite.call("HTTP, as the OpenAI API")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_spans_of_one_request_reach_a_collector_from_every_hop(suite: Suite) -> None:
    trace_id = os.urandom(16)
    parent = f"00-{trace_id.hex()}-00f067aa0ba902b7-01"
    with Client(suite.gateway, model="alpha", timeout_s=60, metadata={"traceparent": parent}) as client:
        client.generate_text([9] * 50, max_output_tokens=4)
    hops = {
        ("gateway-0", "gateway.generate"),
        ("scheduler", "scheduler.acquire"),
        ("kvmanager", "kvmanager.match"),
        ("worker-0", "worker.request"),
    }
    deadline = time.monotonic() + 60
    while not hops <= (seen := hops_of(suite.collector, trace_id)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)


def hops_of(collector: Collector, trace_id: bytes) -> set[tuple[str, str]]:
    return {(service, span.name) for service, span in list(collector.spans) if span.trace_id == trace_id}
