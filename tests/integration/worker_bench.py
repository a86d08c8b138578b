"""A worker in this process on any free port, and a gateway that speaks its stream by hand."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from protos.types.v1 import types_pb2
from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc
from services.chassis.grpc import create_channel
from services.chassis.lifecycle import Lifecycle
from services.domain.ids import Epoch
from services.rpc import convert
from worker.app import Worker
from worker.config import ExecutorKind, WorkerConfig
from worker.devices import Device
from worker.executors.base import Executor
from worker.executors.sim import CostModel, SimConfig, SimExecutor, SimFaults
from worker.loading import Loaded
from worker.memory import PoolSize

VOCAB_SIZE = 500
CONTEXT_TOKENS = 2048
FIRST_EPOCH = Epoch(1_000)
LIMIT_S = 180.0
"""For what must come; no test asserts how soon."""


@dataclass(slots=True)
class RunningWorker:
    """What a test sees of a worker."""

    worker: Worker
    lifecycle: Lifecycle
    faults: SimFaults
    channel: object
    stub: worker_pb2_grpc.WorkerServiceStub
    task: asyncio.Task[None]

    async def status(self) -> pb.GetStatusResponse:
        return await self.stub.GetStatus(pb.GetStatusRequest())

    async def wait_for(self, what: Callable[[pb.GetStatusResponse], bool], limit_s: float = LIMIT_S) -> None:
        """Ask for the status until `what` holds."""
        async with asyncio.timeout(limit_s):
            while not what(await self.status()):  # noqa: ASYNC110 - the state is in another thread
                await asyncio.sleep(0.01)

    async def wait_empty(self) -> None:
        """Wait until nothing is live and every page is free or cached."""
        await self.wait_for(
            lambda s: (
                s.running == s.waiting == s.held_pages == 0 and s.free_pages + s.cached_pages == s.total_pages
            )
        )


@asynccontextmanager
async def running_worker(
    *,
    num_pages: int = 256,
    step_ms: float = 1.0,
    executor: Executor | None = None,
    device: Device | None = None,
    **config: object,
) -> AsyncIterator[RunningWorker]:
    """Run a sim worker, or one with `executor`; it is told to stop at the end, and must then have stopped.

    Args:
        device: On which it is said to compute.
    """
    faults = SimFaults()

    def load(config: WorkerConfig) -> Loaded:
        cost = CostModel(
            prefill_tokens_per_s=1e6, step_s=step_ms / 1000, decode_sequence_s=0, decode_context_token_s=0
        )
        sim = SimConfig(vocab_size=VOCAB_SIZE, max_context_tokens=CONTEXT_TOKENS, page_bytes=1, cost=cost)
        made = SimExecutor(sim, faults) if executor is None else executor
        made.allocate(num_pages)
        max_context = min(CONTEXT_TOKENS, made.profile.max_context_tokens)
        return Loaded(made, PoolSize(num_pages, "given"), max_context, device)

    settings = WorkerConfig(model="sim", executor=ExecutorKind.SIM, port=0, probe_port=0, **config)
    async with asyncio.TaskGroup() as group:
        lifecycle = Lifecycle("worker-0", group)
        worker = Worker(settings, lifecycle, load)
        task = group.create_task(worker.run())
        serving = group.create_task(worker.serving.wait())
        await asyncio.wait((task, serving), return_when=asyncio.FIRST_COMPLETED)
        channel = create_channel(f"127.0.0.1:{worker.port}")
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        try:
            yield RunningWorker(worker, lifecycle, faults, channel, stub, task)
        finally:
            await channel.close()
            faults.running.set()
            lifecycle.stopping.set()
            await asyncio.wait((task,), timeout=LIMIT_S)
            lifecycle._cancel_tasks()
            serving.cancel()


@dataclass(slots=True)
class HandGateway:
    """One gateway's side of the stream: sends by hand, keeps what it receives, says hello again on demand."""

    worker: RunningWorker
    name: str = "gateway-0"
    epoch: Epoch = FIRST_EPOCH
    confirm: bool = True
    """Answer heartbeats by confirming what was received."""
    received: int = 0
    worker_epoch: int = 0
    welcomes: list[pb.WorkerWelcome] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    events: dict[int, list[pb.Event]] = field(default_factory=dict)
    steps: list[pb.StepOutputs] = field(default_factory=list)
    error: Exception | None = None
    _call: object = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reader: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _handles: itertools.count = field(default_factory=lambda: itertools.count(1))

    async def connect(self) -> pb.WorkerWelcome:
        """Open a stream, say hello with what was received, and return the welcome."""
        num_welcomes = len(self.welcomes)
        self.error = None
        channel = create_channel(f"127.0.0.1:{self.worker.worker.port}")
        self._call = worker_pb2_grpc.WorkerServiceStub(channel).Connect()
        hello = pb.GatewayHello(
            peer=convert.peer_to_pb(self.name, self.epoch, "test"),
            received=self.received,
            worker_epoch=self.worker_epoch,
        )
        await self.send(hello=hello)
        self._reader = asyncio.create_task(self._read(channel))
        await self.wait_for(lambda: len(self.welcomes) > num_welcomes or self.error is not None)
        if self.error is not None:
            raise self.error
        return self.welcomes[-1]

    async def send(self, **message: object) -> None:
        async with self._writing:
            await self._call.write(pb.ConnectRequest(**message))

    async def submit(self, num_prompt: int = 20, max_output: int = 10, **fields: object) -> int:
        """Submit a request and return its handle."""
        handle = next(self._handles)
        await self.send(submit=self.a_submit(handle, num_prompt, max_output, **fields))
        return handle

    def a_submit(
        self, handle: int, num_prompt: int = 20, max_output: int = 10, **fields: object
    ) -> pb.Submit:
        values = {
            "handle": handle,
            "key": types_pb2.RequestKey(request_id=f"{self.name}-{self.epoch}-{handle}", attempt=1),
            "epoch": self.worker_epoch,
            "tenant": "local",
            "band": types_pb2.BAND_STANDARD,
            "n": 1,
            "prompt_ids": [(handle * 31 + i) % VOCAB_SIZE for i in range(num_prompt)],
            "salt": b"salt",
            "sampling": types_pb2.Sampling(temperature=1, top_p=1, repetition_penalty=1, seed=7),
            "max_output_tokens": max_output,
        }
        return pb.Submit(**(values | fields))

    def kinds(self, handle: int) -> list[str]:
        """Return the kinds of a request's events, in order."""
        return [event.WhichOneof("event") for event in self.events.get(handle, ())]

    def num_tokens(self, handle: int, choice: int = 0) -> int:
        return len(self.tokens.get((handle, choice), ()))

    async def wait_for(self, what: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        async with asyncio.timeout(limit_s):
            while not what():
                if isinstance(self.error, AssertionError):
                    raise self.error
                self._changed.clear()
                await self._changed.wait()

    async def wait_end(self, handle: int) -> pb.Event:
        """Wait for a request's last event."""
        await self.wait_for(lambda: self.kinds(handle)[-1:] in (["ended"], ["refused"]))
        return self.events[handle][-1]

    async def wait_broken(self) -> None:
        """Wait until the worker has ended the stream."""
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait((self._reader,))

    async def drop(self) -> None:
        """Break the connection without a word, as a blip or a SIGKILL does."""
        self._call.cancel()
        await asyncio.wait((self._reader,))
        self.error = None

    async def _read(self, channel: object) -> None:
        try:
            async for message in self._call:
                await self._take(message)
                self._changed.set()
        except Exception as error:
            self.error = error
        finally:
            self._changed.set()
            await channel.close()

    async def _take(self, message: pb.ConnectResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "welcome":
            self.welcomes.append(message.welcome)
            self.worker_epoch = message.welcome.peer.epoch
            if not message.welcome.resumed:
                self.received = 0
        elif kind == "heartbeat":
            if self.confirm and not self._call.done():
                await self.send(received=pb.Received(position=self.received))
        else:
            self.received = message.position
            self.positions.append(message.position)
            self._take_step(message.step)

    def _take_step(self, step: pb.StepOutputs) -> None:
        self.steps.append(step)
        start = 0
        for handle, choice, first, count in zip(
            step.handles, step.choices, step.first_position, step.counts, strict=True
        ):
            tokens = self.tokens.setdefault((handle, choice), [])
            assert first <= len(tokens), "a token is missing"
            del tokens[first:]
            tokens += step.token_ids[start : start + count]
            start += count
        for event in step.events:
            self.events.setdefault(event.handle, []).append(event)


async def connected(worker: RunningWorker, **fields: object) -> HandGateway:
    """Return a gateway that has said hello."""
    gateway = HandGateway(worker, **fields)
    await gateway.connect()
    return gateway
