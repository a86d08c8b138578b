"""A worker for the gateway's tests: answers with scripted token ids, one per choice and step."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc

from protos.types.v1 import types_pb2
from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1 import worker_pb2_grpc
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_server
from services.chassis.stream import Outbox, first_message, serve_duplex
from services.domain.errors import ServeError
from services.domain.ids import Epoch
from services.rpc import convert

SCORED_TOKENS = 3
"""Prompt tokens scored in one message."""

PEAK_PAGES = 3
"""Of every request."""

Script = Callable[[pb.Submit, int], list[int]]
"""Ids of one choice of a request; when they are spent the choice ends by length."""


def endless(submit: pb.Submit, choice: int) -> list[int]:
    """As many `a` as asked for."""
    return [97] * submit.max_output_tokens


def says(*texts: str) -> Script:
    """The same text for each choice, or one text per choice."""
    return lambda submit, choice: list(texts[choice % len(texts)].encode())


@dataclass
class _Running:
    submit: pb.Submit
    scripts: list[list[int]]
    sent: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    is_new: bool = True


class _Outbox(Outbox[pb.ConnectResponse]):
    """Swallows everything while its worker is mute."""

    def __init__(self, worker: "FakeWorker") -> None:
        super().__init__()
        self._worker = worker

    def put_nowait(self, item: pb.ConnectResponse) -> bool:
        return True if self._worker.is_mute else super().put_nowait(item)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """One boot of a worker. It remembers what a gateway has not confirmed and sends it again."""

    def __init__(self, name: str = "worker-0", *, epoch: int = 1000, step_s: float = 0.0) -> None:
        self.name = name
        self.epoch = epoch
        self.step_s = step_s
        self.script: Script = says("hello world")
        self.refuses: ServeError | None = None
        self.num_refusals = math.inf
        """How many Submits `refuses` still meets."""
        self.refuses_only: Callable[[pb.Submit], bool] = lambda submit: True
        """Which of them it meets."""
        self.is_open = asyncio.Event()
        """Steps are made only while it is set."""
        self.is_open.set()
        self.is_mute = False
        """Send nothing at all, heartbeats included."""
        self.cached_tokens = 0
        self.logprob: Callable[[int], tuple[float, list[tuple[int, float]]]] | None = None
        """Of each token, scored ones of the prompt too; None: -1 and no alternatives."""
        self.is_scoring = True
        """Send the scores of prompts that were asked for."""
        self.running: dict[int, _Running] = {}
        self.submits: list[pb.Submit] = []
        self.cancelled: list[int] = []
        self.hellos: list[pb.GatewayHello] = []
        self.num_steps = 0
        self.num_tokens = 0
        self.port = 0
        self._events: list[pb.Event] = []
        self._work = asyncio.Event()
        self._position = 0
        self._unconfirmed: deque[pb.ConnectResponse] = deque()
        self._outbox: Outbox[pb.ConnectResponse] | None = None
        self._server: grpc.aio.Server | None = None
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server = create_server(interceptors=[ErrorInterceptor()])
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        self.port = bind(self._server, f"127.0.0.1:{self.port}")
        await self._server.start()
        if self._loop_task is None:
            self._loop_task = asyncio.create_task(self._step_loop(), name="fake-worker")

    async def stop(self) -> None:
        """Die: the port is closed, connections are cut."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            self._loop_task = None
        await self.close_port()

    async def close_port(self) -> None:
        """Cut the connection but live on; `start` opens the same port again."""
        if self._server is not None:
            await self._server.stop(None)
            await self._server.wait_for_termination()
            self._server = None

    async def Connect(
        self, requests: AsyncIterator[pb.ConnectRequest], context: grpc.aio.ServicerContext
    ) -> None:
        hello = (await first_message(requests)).hello
        self.hellos.append(hello)
        outbox = _Outbox(self)
        resumed = hello.worker_epoch == self.epoch
        if not resumed:
            self.running.clear()
            self._unconfirmed.clear()
            self._position = 0
        peer = convert.peer_to_pb(self.name, Epoch(self.epoch), "fake")
        outbox.put_nowait(pb.ConnectResponse(welcome=pb.WorkerWelcome(peer=peer, resumed=resumed)))
        for message in self._unconfirmed:
            if message.position > hello.received:
                outbox.put_nowait(message)
        self._outbox = outbox
        try:
            await serve_duplex(context, requests, outbox, self._on_message, self._heartbeat)
        finally:
            if self._outbox is outbox:
                self._outbox = None

    def _heartbeat(self) -> pb.ConnectResponse:
        return pb.ConnectResponse(heartbeat=types_pb2.Heartbeat())

    def _on_message(self, message: pb.ConnectRequest) -> None:
        kind = message.WhichOneof("message")
        if kind == "submit":
            self._on_submit(message.submit)
        elif kind == "cancel":
            self.cancelled.append(message.cancel.handle)
            if self.running.pop(message.cancel.handle, None) is not None:
                self._events.append(
                    pb.Event(handle=message.cancel.handle, ended=pb.Ended(peak_pages=PEAK_PAGES))
                )
        elif kind == "finish_choice":
            running = self.running.get(message.finish_choice.handle)
            if running is not None:
                self._end_choice(running, message.finish_choice.choice, message.finish_choice.reason)
        elif kind == "received":
            while self._unconfirmed and self._unconfirmed[0].position <= message.received.position:
                self._unconfirmed.popleft()
        self._work.set()

    def _on_submit(self, submit: pb.Submit) -> None:
        self.submits.append(submit)
        if self.refuses is not None and self.num_refusals > 0 and self.refuses_only(submit):
            self.num_refusals -= 1
            refused = convert.failure_to_pb(self.refuses)
            self._events.append(pb.Event(handle=submit.handle, refused=refused))
        elif submit.handle not in self.running:
            scripts = [self.script(submit, choice) for choice in range(submit.n)]
            self.running[submit.handle] = _Running(submit, scripts, [0] * submit.n)

    def _end_choice(self, running: _Running, choice: int, reason: int) -> None:
        if choice in running.ended:
            return
        running.ended.add(choice)
        ended = pb.ChoiceEnded(choice=choice, reason=reason, output_tokens=running.sent[choice])
        self._events.append(pb.Event(handle=running.submit.handle, choice_ended=ended))

    async def _step_loop(self) -> None:
        while True:
            await self._work.wait()
            await self.is_open.wait()
            self._work.clear()
            self._step()
            if self.running or self._events:
                self._work.set()
            await asyncio.sleep(self.step_s)

    def _step(self) -> None:
        step = pb.StepOutputs(step=self.num_steps)
        self.num_steps += 1
        for handle, running in list(self.running.items()):
            if running.is_new:
                running.is_new = False
                self._events.append(pb.Event(handle=handle, accepted=pb.Accepted()))
                self._events.append(
                    pb.Event(handle=handle, started=pb.Started(cached_tokens=self.cached_tokens))
                )
                if self.is_scoring and running.submit.HasField("num_prompt_logprobs"):
                    self._score_prompt(running.submit)
            for choice in range(running.submit.n):
                if choice not in running.ended:
                    self._step_choice(step, running, choice)
            if len(running.ended) == running.submit.n:
                del self.running[handle]
                usage = types_pb2.Usage(
                    prompt_tokens=len(running.submit.prompt_ids), output_tokens=sum(running.sent)
                )
                ended = pb.Ended(
                    usage=usage, page_seconds=1.5, peak_pages=PEAK_PAGES, prefill_s=0.25, decode_s=0.5
                )
                self._events.append(pb.Event(handle=handle, ended=ended))
        step.events.extend(self._events)
        self._events.clear()
        self._send(step)

    def _score_prompt(self, submit: pb.Submit) -> None:
        for first in range(1, len(submit.prompt_ids), SCORED_TOKENS):
            scored = pb.PromptScored(first_position=first)
            for token_id in submit.prompt_ids[first : first + SCORED_TOKENS]:
                value, top = (-1.0, []) if self.logprob is None else self.logprob(token_id)
                scored.logprobs.append(value)
                for one, other in top[: submit.num_prompt_logprobs]:
                    scored.top_ids.append(one)
                    scored.top_logprobs.append(other)
            self._events.append(pb.Event(handle=submit.handle, prompt_scored=scored))

    def _step_choice(self, step: pb.StepOutputs, running: _Running, choice: int) -> None:
        submit, position = running.submit, running.sent[choice]
        script = running.scripts[choice]
        if position < min(len(script), submit.max_output_tokens):
            token_id = script[position]
            step.handles.append(submit.handle)
            step.choices.append(choice)
            step.first_position.append(position)
            step.counts.append(1)
            step.token_ids.append(token_id)
            if self.logprob is not None:
                value, top = self.logprob(token_id)
                step.logprobs.append(value)
                step.tops.append(
                    pb.TokenTop(
                        index=len(step.token_ids) - 1,
                        token_ids=[one for one, _ in top],
                        logprobs=[one for _, one in top],
                    )
                )
            running.sent[choice] += 1
            self.num_tokens += 1
            if token_id in submit.stop_token_ids:
                self._end_choice(running, choice, types_pb2.FINISH_REASON_STOP)
        if running.sent[choice] >= min(len(script), submit.max_output_tokens):
            self._end_choice(running, choice, types_pb2.FINISH_REASON_LENGTH)

    def _send(self, step: pb.StepOutputs) -> None:
        if not step.handles and not step.events:
            return
        self._position += 1
        message = pb.ConnectResponse(position=self._position, step=step)
        self._unconfirmed.append(message)
        if self._outbox is not None:
            self._outbox.put_nowait(message)
