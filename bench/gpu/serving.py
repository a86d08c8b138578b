"""A worker process over gRPC, without scheduler, kvmanager or Redis: generate, hit a prefix, cancel.

One model of random weights with int8 KV. What is asked of it is what a gateway asks, through the gateway's
own link. Knows processes and requests; knows nothing of kernels.
"""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from bench.gpu.served_model import write_folder
from bench.gpu.sizes import Served
from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1.worker_pb2_grpc import WorkerServiceStub
from services.chassis.grpc import create_channel
from services.domain.block_hash import hash_blocks
from services.domain.errors import ServeError
from services.domain.generation import Band, FinishReason, Limits, SamplingParams, StopParams
from services.domain.ids import Epoch, RequestId, RequestKey, TenantId, WorkerId
from services.domain.miss_reason import MissReason
from services.rpc import convert
from services.rpc.gateway_values import EndReport, Placement, Submission, Tops
from services.rpc.gateway_worker_link import Attachment, WorkerLink

_SALT = b"bench"
_POLL_S = 0.05


class ServingFault(Exception):
    """The worker did not do what a gateway may expect; the text says what."""


class Answer:
    """Everything that is heard of one request."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.cached_tokens: int | None = None
        self.began = time.perf_counter()
        self.first_token_s: float | None = None
        self.total_s: float | None = None
        self.first_token = asyncio.Event()
        self.end = asyncio.Event()
        self.failure: str | None = None

    def on_accepted(self) -> None:
        """Hear that the worker has it."""

    def on_started(self, cached_tokens: int) -> None:
        """Hear that it runs."""
        self.cached_tokens = cached_tokens

    def on_prompt_scored(self, first_position: int, logprobs: Sequence[float], tops: Tops) -> None:
        """Not asked for."""

    def on_tokens(
        self,
        choice: int,
        first_position: int,
        token_ids: list[int],
        logprobs: list[float] | None,
        tops: Tops | None,
    ) -> None:
        """Take tokens from a position on."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.began
        self.token_ids[first_position:] = token_ids
        self.first_token.set()

    def on_preempted(self) -> None:
        """There is room for all."""

    def on_choice_ended(self, choice: int, reason: FinishReason, output_tokens: int) -> None:
        """The end of the request follows."""

    def on_ended(self, report: EndReport) -> None:
        """Hear that it is over."""
        self.total_s = time.perf_counter() - self.began
        self._finish(None if report.failure is None else str(report.failure))

    def on_refused(self, error: ServeError) -> None:
        """Hear that it never ran."""
        self._finish(f"refused: {error}")

    def on_lost(self, error: ServeError) -> None:
        """Hear that the worker is gone."""
        self._finish(f"lost: {error}")

    def _finish(self, failure: str | None) -> None:
        self.failure = failure
        self.first_token.set()
        self.end.set()


class Client:
    """A gateway's side of one worker."""

    def __init__(self, link: WorkerLink, stub: Any, served: Served) -> None:
        self._link, self._stub, self._served = link, stub, served
        self._numbers = itertools.count()

    def submit(self, prompt_ids: Sequence[int], max_output: int) -> tuple[Answer, Attachment]:
        """Submit a greedy request."""
        key = RequestKey(RequestId(f"bench-{next(self._numbers)}"), 1)
        placement = Placement(
            key=key,
            band=Band.STANDARD,
            worker=self._link.worker,
            epoch=self._link.epoch,
            address="",
            term=0,
            seq=0,
            cached_tokens=0,
            miss_reason=MissReason.NEVER_SEEN,
            first_miss_token=0,
        )
        submission = Submission(
            tenant=TenantId("bench"),
            band=Band.STANDARD,
            num_choices=1,
            prompt_ids=prompt_ids,
            block_hashes=hash_blocks(prompt_ids, salt=_SALT),
            salt=_SALT,
            sampling=SamplingParams(temperature=0.0),
            stop=StopParams(max_output_tokens=max_output),
            limits=Limits(),
        )
        answer = Answer()
        return answer, self._link.submit(placement, submission, answer)

    async def complete(self, prompt_ids: Sequence[int], max_output: int) -> Answer:
        """Submit a request and wait for its end."""
        answer, _ = self.submit(prompt_ids, max_output)
        async with asyncio.timeout(self._served.limit_s):
            await answer.end.wait()
        if answer.failure is not None or len(answer.token_ids) != max_output:
            raise ServingFault(
                f"{len(answer.token_ids)} of {max_output} tokens came, failure: {answer.failure}"
            )  # fmt: skip
        return answer

    async def status(self) -> pb.GetStatusResponse:
        """Return what the worker says of itself."""
        answer: pb.GetStatusResponse = await self._stub.GetStatus(
            pb.GetStatusRequest(), timeout=self._served.limit_s
        )
        return answer

    async def wait_idle(self) -> None:
        """Wait until the worker holds no page and runs nothing."""
        async with asyncio.timeout(self._served.limit_s):
            while (status := await self.status()).running or status.held_pages:  # noqa: ASYNC110 - another process
                await asyncio.sleep(_POLL_S)


async def exercise(client: Client, served: Served) -> dict[str, Any]:
    """Generate cold and again, cancel a third, and return what was seen.

    Raises:
        ServingFault: Something is not as a gateway may expect.
    """
    prompt = [(7 * i + 3) % served.config["vocab_size"] for i in range(served.num_prompt)]
    cold = await client.complete(prompt, served.num_output)
    warm = await client.complete(prompt, served.num_output)
    whole_blocks = (served.num_prompt - 1) // 16 * 16
    if warm.cached_tokens != whole_blocks:
        raise ServingFault(f"{warm.cached_tokens} tokens of the prefix were reused, not {whole_blocks}")
    if warm.token_ids != cold.token_ids:
        raise ServingFault("a prefix hit gave other tokens than the miss before it")
    cancelled_after = await _cancel(client, prompt[::-1], served)
    status = await client.status()
    return {
        "executor": status.executor,
        "kv_format": "int8",
        "generate": f"{served.num_output} tokens",
        "first_token_cold_ms": round((cold.first_token_s or 0) * 1e3, 2),
        "first_token_hit_ms": round((warm.first_token_s or 0) * 1e3, 2),
        "total_hit_ms": round((warm.total_s or 0) * 1e3, 2),
        "prefix_hit": f"{warm.cached_tokens} of {served.num_prompt} tokens, same output",
        "cancel": f"after {cancelled_after} of {served.num_cancelled} tokens, no page held",
    }


async def _cancel(client: Client, prompt: Sequence[int], served: Served) -> int:
    """Cancel a request after its first token; return how many tokens the worker computed of it.

    The worker is asked for that: the link tells a cancelled request nothing more, whatever still comes.
    """
    await client.wait_idle()
    before = (await client.status()).decode_tokens
    answer, attachment = client.submit(prompt, served.num_cancelled)
    async with asyncio.timeout(served.limit_s):
        await answer.first_token.wait()
    if answer.failure is not None:
        raise ServingFault(f"a request that was to be cancelled failed: {answer.failure}")
    attachment.cancel(lambda last_word: None)  # The worker is asked instead.
    await client.wait_idle()
    num_tokens = 1 + (await client.status()).decode_tokens - before  # the first is prefill's
    if num_tokens >= served.num_cancelled:
        raise ServingFault(f"a cancelled request went on to its end: {num_tokens} tokens")
    return num_tokens


async def connect_and_exercise(port: int, served: Served, is_alive: Callable[[], bool]) -> dict[str, Any]:
    """Wait until the worker serves, then exercise it."""
    target = f"127.0.0.1:{port}"
    async with create_channel(target) as channel:
        stub = WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
        epoch = await _wait_serving(stub, served, is_alive)
        link = WorkerLink(
            create_channel(target),
            WorkerId("bench-worker"),
            epoch,
            lambda: convert.peer_to_pb("bench-gateway", Epoch(time.time_ns() // 1000), "bench"),
        )
        running = asyncio.create_task(link.run(), name="worker-link")
        try:
            return await exercise(Client(link, stub, served), served)
        finally:
            running.cancel()
            await asyncio.wait((running,))


async def _wait_serving(stub: Any, served: Served, is_alive: Callable[[], bool]) -> Epoch:
    async with asyncio.timeout(served.limit_s):
        while True:
            try:
                status = await stub.GetStatus(pb.GetStatusRequest(), timeout=5)
                return Epoch(status.epoch)
            except grpc.RpcError:
                if not is_alive():
                    raise ServingFault("the worker ended before it served") from None
                await asyncio.sleep(_POLL_S)


def serve(served: Served) -> dict[str, Any]:
    """Start a worker, exercise it and end it; return what was seen.

    Raises:
        ServingFault: It did not start, or not everything was right; the end of its log is in the text.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        write_folder(model, served.config)
        with _worker(model, folder / "log", served) as (process, port):
            try:
                return asyncio.run(connect_and_exercise(port, served, lambda: process.poll() is None))
            except (ServingFault, TimeoutError) as exc:
                tail = (folder / "log").read_text()[-1500:]
                raise ServingFault(f"{exc or 'a wait was too long'}; the worker's log ends: {tail}") from exc


@contextmanager
def _worker(model: Path, log: Path, served: Served) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run a worker process and end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "worker", "--model", f"bench={model}", "--executor", served.executor]
    command += ["--name", "bench-worker", "--port", str(port), "--probe-port", "0", "--kv-format", "int8"]
    command += [*served.flags]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], env=os.environ, stdout=file, stderr=file
        )
        try:
            yield process, port
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
