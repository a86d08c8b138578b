"""The worker as a process: probes, signals, what it says when it cannot start or goes on."""

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc
from services.chassis.fatal import EngineFailed
from tests.conftest import free_port
from tests.e2e.stack import Samples
from tests.integration.worker_bench import LIMIT_S, HandGateway

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class WorkerProcess:
    """`python -m worker`, with the sim executor unless flags say otherwise."""

    def __init__(
        self, *flags: str, module: str = "worker", environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.module, self.environment = module, {**os.environ, **environment}
        self.port, self.probe_port = free_port(), free_port()
        self.flags = (
            "--executor", "sim", "--model", "sim", "--sim-step-ms", "2", "--sim-vocab-size", "500",
            "--port", str(self.port), "--probe-port", str(self.probe_port), *flags,
        )  # fmt: skip

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self.module, *self.flags),
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )

    def probe(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}{path}", timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    async def until_ready(self, status: int = 200) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (await asyncio.to_thread(self.probe, "/readyz"))[0] != status:
                assert self.process.returncode is None, await self.process.stderr.read()
                await asyncio.sleep(0.05)

    async def end(self) -> tuple[int, str]:
        """Wait for the end; return exit code and what was written."""
        async with asyncio.timeout(LIMIT_S):
            _, written = await self.process.communicate()
        return self.process.returncode, written.decode()


@asynccontextmanager
async def worker_process(*flags: str, **how: Any) -> AsyncIterator[WorkerProcess]:
    process = WorkerProcess(*flags, **how)
    await process.start()
    try:
        yield process
    finally:
        if process.process.returncode is None:
            process.process.kill()
            await process.process.wait()


class ByPort:
    """What `HandGateway` needs of a worker, for a process."""

    def __init__(self, port: int) -> None:
        self.worker = self
        self.port = port


async def test_a_process_serves_probes_and_metrics_and_leaves_on_sigterm() -> None:
    async with worker_process() as process:
        await process.until_ready()
        gateway = HandGateway(ByPort(process.port))
        await gateway.connect()
        handle = await gateway.submit(num_prompt=40, max_output=20)
        await gateway.wait_end(handle)
        text = (await asyncio.to_thread(process.probe, "/metrics"))[1].decode()
        for line in (
            'quire_requests{state="running"} 0.0',
            'quire_requests_finished_total{reason="length"} 1.0',
            'quire_prefix_tokens_total{result="miss"} 40.0',
            'quire_step_tokens_total{phase="prefill"} 40.0',
            "quire_prompt_tokens_sum 40.0",
            "quire_output_tokens_sum 20.0",
            'quire_kv_pages{state="held"} 0.0',
            "quire_metric_faults_total",
        ):
            assert line in text, line
        process.process.send_signal(signal.SIGTERM)
        code, written = await process.end()
        assert code == 0
        assert '"reason":"ok"' in written
        assert '"peak_pages":4' in written


@pytest.mark.failure("B164")
async def test_a_crashed_engine_ends_the_process_with_one_line() -> None:
    async with worker_process("--sim-crash-token", "499") as process:
        await process.until_ready()
        gateway = HandGateway(ByPort(process.port))
        await gateway.connect()
        failure = (await gateway.wait_end(await gateway.submit(prompt_ids=[1, 499]))).ended.failure
        assert failure.reason == "WORKER_LOST"
        code, written = await process.end()
        assert code == EngineFailed.exit_code == 4
        assert written.splitlines()[-1].startswith("error: the engine failed")


async def test_a_slow_step_a_bad_row_and_a_stall_come_on_demand() -> None:
    """One process with three faults: every step is slower, one prompt fails alone, one makes it not ready."""
    slow_ms, num_tokens = 25, 8
    async with worker_process(
        *("--sim-extra-step-ms", str(slow_ms), "--sim-bad-token", "497", "--sim-stall-token", "498"),
        *("--stuck-after-s", "0.3"),
    ) as process:
        await process.until_ready()
        gateway = HandGateway(ByPort(process.port))
        await gateway.connect()
        good = await gateway.submit(prompt_ids=[1, 2], max_output=num_tokens)
        bad = await gateway.submit(prompt_ids=[1, 497])
        assert (await gateway.wait_end(bad)).ended.failure.reason == "BAD_LOGITS"
        assert not (await gateway.wait_end(good)).ended.HasField("failure")
        steps = Samples((await asyncio.to_thread(process.probe, "/metrics"))[1].decode())
        assert steps.sum("quire_step_seconds_count") >= num_tokens
        assert steps.sum("quire_step_seconds_sum") >= num_tokens * slow_ms / 1000
        await gateway.submit(prompt_ids=[1, 498])
        await process.until_ready(503)
        assert (await asyncio.to_thread(process.probe, "/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--model", "x=/nowhere/at/all", "--executor", "torch"), 1, "/nowhere/at/all"),
        (("--kv-memory", "1KiB"), 1, "--kv-memory"),
        (("--host", "0.0.0.0"), 2, "--insecure"),
    ],
)
async def test_what_cannot_start_says_why_in_one_line(flags: tuple[str, ...], code: int, says: str) -> None:
    async with worker_process(*flags) as process:
        ended, written = await process.end()
        assert ended == code
        last = written.splitlines()[-1]
        assert last.startswith("error: ")
        assert says in last


async def test_a_busy_port_is_named() -> None:
    async with worker_process() as process:
        await process.until_ready()
        async with worker_process("--port", str(process.port)) as second:
            code, written = await second.end()
            assert code == 3
            assert f"port {process.port}" in written.splitlines()[-1]


@pytest.mark.failure("B180")
async def test_prompts_and_outputs_reach_no_log_metric_or_trace(tmp_path: Path) -> None:
    trace = tmp_path / "spans.jsonl"
    async with worker_process(
        "--trace", f"file:{trace}", "--log-level", "debug", "--sim-bad-token", "7"
    ) as process:
        await process.until_ready()
        gateway = HandGateway(ByPort(process.port))
        await gateway.connect()
        canary = [487, 488, 489] * 7
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        for fields in ({}, {"prompt_ids": [*canary, 7]}, {"prompt_ids": [*canary, 500]}, {"tenant": ""}):
            submit = {"prompt_ids": canary, "salt": b"canary-salt", "traceparent": parent} | fields
            await gateway.wait_end(await gateway.submit(**submit))
        metrics = (await asyncio.to_thread(process.probe, "/metrics"))[1].decode()
        process.process.send_signal(signal.SIGTERM)
        _, written = await process.end()
        spans = trace.read_text()
        for text in (written, metrics, spans):
            assert "487, 488" not in text
            assert "487,488" not in text
            assert "canary-salt" not in text
        assert spans.count('"name":"worker.request"') == 3
        assert spans.count('"parent_id":"b7ad6b7169203331"') == 3
        assert '"name":"first_token"' in spans


@pytest.mark.slow
async def test_a_stopped_process_that_wakes_up_harms_nothing() -> None:
    async with worker_process() as process:
        await process.until_ready()
        gateway = HandGateway(ByPort(process.port))
        old = (await gateway.connect()).peer.epoch
        handle = await gateway.submit(max_output=2000)
        await gateway.wait_for(lambda: gateway.num_tokens(handle) > 0)
        os.kill(process.process.pid, signal.SIGSTOP)
        await asyncio.sleep(5)
        os.kill(process.process.pid, signal.SIGCONT)
        await gateway.wait_broken()
        welcome = await gateway.connect()
        assert welcome.peer.epoch > old
        assert not welcome.resumed
        await gateway.wait_end(await gateway.submit())
        status = await grpc_status(process.port)
        assert (status.running, status.held_pages) == (0, 0)


async def grpc_status(port: int) -> pb.GetStatusResponse:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return await worker_pb2_grpc.WorkerServiceStub(channel).GetStatus(pb.GetStatusRequest())
