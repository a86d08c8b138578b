"""A gateway's stream to one boot of one worker, with many requests on it.

Hands each request its share of every step, re-attaches by position after a blip, and declares the worker lost
after its silence. Knows nothing of text, quotas or placing, nor of other workers or the next boot: those are
for `services.rpc.gateway_worker_links`.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from protos.worker.v1 import worker_pb2 as pb
from protos.worker.v1.worker_pb2_grpc import WorkerServiceStub
from services.chassis.stream import DEAD_AFTER_S, Outbox, run_duplex
from services.domain.errors import ServeError, StaleAttempt, WorkerLost
from services.domain.generation import FinishReason
from services.domain.ids import Epoch, WorkerId
from services.rpc import convert
from services.rpc.gateway_messages import end_from_pb, submit_to_pb, tops_from_pb
from services.rpc.gateway_values import LastWord, Placement, Submission, TokenSink, Tops

FIRST_CONTACT_S = 1.0
"""Seconds in which a worker that was never reached must answer; it was alive when it was chosen."""
RECONNECT_PAUSE_S = 0.05
MAX_CANCELLED = 4096
"""Cancels remembered until the worker confirms them, to be said again after a blip."""

_log = structlog.get_logger()


class _Live:
    """One request on the link."""

    __slots__ = ("accepted", "finished", "sent_in", "sink", "submit")

    def __init__(self, sink: TokenSink, submit: pb.Submit) -> None:
        self.sink = sink
        self.submit: pb.Submit | None = submit
        self.accepted = False
        self.sent_in = 0
        self.finished: dict[int, pb.FinishChoice] = {}


class Attachment:
    """A submitted request's hold on its worker."""

    __slots__ = ("_handle", "_link")

    def __init__(self, link: "WorkerLink", handle: int) -> None:
        self._link = link
        self._handle = handle

    def cancel(self, on_last_word: LastWord) -> None:
        """Tell the worker to stop; the sink hears nothing more.

        Args:
            on_last_word: Given the worker's numbers when it confirms, or None once it never will.
        """
        self._link._cancel(self._handle, on_last_word)

    def finish_choice(self, choice: int, reason: FinishReason) -> None:
        """Tell the worker that one choice has ended here."""
        self._link._finish_choice(self._handle, choice, reason)


class WorkerLink:
    """The stream to one boot of one worker; `run` ends when that boot is gone."""

    def __init__(
        self, channel: grpc.aio.Channel, worker: WorkerId, epoch: Epoch, make_peer: Callable[[], Any]
    ) -> None:
        self.worker = worker
        self.epoch = epoch
        self._channel = channel
        self._make_peer = make_peer
        self._handles = itertools.count(1)
        self._live: dict[int, _Live] = {}
        self._cancelled: dict[int, LastWord] = {}
        self._outbox: Outbox[pb.ConnectRequest] | None = None
        self._session_number = 0
        self._received = 0
        self._peer_epoch = 0
        self._heard_at = time.monotonic()
        self.is_dead = False
        """Entries for requests that are not known (any more); dropped."""

    @property
    def num_live(self) -> int:
        return len(self._live)

    def submit(self, placement: Placement, submission: Submission, sink: TokenSink) -> Attachment:
        """Give the worker a request; `sink` hears everything of it."""
        handle = next(self._handles)
        live = _Live(sink, submit_to_pb(handle, placement, submission))
        self._live[handle] = live
        self._send_submit(live)
        return Attachment(self, handle)

    async def run(self) -> None:
        """Keep the stream until the worker is gone, then tell every request so."""
        reason = ""
        try:
            while not self.is_dead:
                try:
                    await self._session()
                    reason = "closed"
                except grpc.RpcError as error:
                    reason = error.code().name
                except ServeError as error:
                    reason = error.reason
                allowed_s = DEAD_AFTER_S if self._peer_epoch else FIRST_CONTACT_S
                if time.monotonic() - self._heard_at > allowed_s:
                    break
                await asyncio.sleep(RECONNECT_PAUSE_S)
        finally:
            _log.warning("worker_link_lost", worker=self.worker, reason=reason, num_live=len(self._live))
            self.close()
            await self._channel.close()

    def close(self) -> None:
        """Give the worker up: every request on it is lost. Idempotent."""
        self.is_dead = True
        if self._outbox is not None:
            self._outbox.close()
        self._forget_cancelled()
        self._lose(lambda live: True)

    async def _session(self) -> None:
        outbox: Outbox[pb.ConnectRequest] = Outbox()
        self._session_number += 1
        hello = pb.GatewayHello(
            peer=self._make_peer(), received=self._received, worker_epoch=self._peer_epoch
        )
        outbox.put_nowait(pb.ConnectRequest(hello=hello))
        self._outbox = outbox
        if not self._peer_epoch:
            self._forget_cancelled()
            for live in self._live.values():
                self._send_submit(live)
        try:
            stub = WorkerServiceStub(self._channel)  # type: ignore[no-untyped-call]
            await run_duplex(stub.Connect, outbox, self._on_message, self._heartbeat)
        finally:
            self._outbox = None

    def _heartbeat(self) -> pb.ConnectRequest:
        return pb.ConnectRequest(received=pb.Received(position=self._received))

    def _send(self, message: pb.ConnectRequest) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    def _send_submit(self, live: _Live) -> None:
        if self._outbox is not None:
            live.sent_in = self._session_number
            self._send(pb.ConnectRequest(submit=live.submit))

    def _cancel(self, handle: int, on_last_word: LastWord) -> None:
        live = self._live.pop(handle, None)
        if live is None or not live.sent_in:
            on_last_word(None)
            return
        self._cancelled[handle] = on_last_word
        if len(self._cancelled) > MAX_CANCELLED:
            self._cancelled.pop(next(iter(self._cancelled)))(None)
        self._send(pb.ConnectRequest(cancel=pb.Cancel(handle=handle)))

    def _forget_cancelled(self) -> None:
        """The worker does not know of them, or will say nothing more."""
        cancelled, self._cancelled = self._cancelled, {}
        for on_last_word in cancelled.values():
            on_last_word(None)

    def _finish_choice(self, handle: int, choice: int, reason: FinishReason) -> None:
        live = self._live.get(handle)
        if live is None:
            return
        message = pb.FinishChoice(handle=handle, choice=choice, reason=convert.finish_to_pb(reason))
        live.finished[choice] = message
        self._send(pb.ConnectRequest(finish_choice=message))

    def _on_message(self, message: pb.ConnectResponse) -> None:
        kind = message.WhichOneof("message")
        if kind != "welcome":
            # A worker that only ever greets is not alive.
            self._heard_at = time.monotonic()
        if kind == "step":
            if message.position <= self._received:
                return
            if message.position != self._received + 1:
                self.close()
                raise WorkerLost(f"worker {self.worker} skipped messages")
            self._received = message.position
            self._on_step(message.step)
        elif kind == "welcome":
            self._on_welcome(message.welcome)

    def _on_welcome(self, welcome: pb.WorkerWelcome) -> None:
        convert.check_peer(welcome.peer)
        is_first = not self._peer_epoch
        if welcome.peer.epoch != self.epoch:
            # Another boot: what was placed on this one is gone, and it may be placed anew at once.
            self.is_dead = True
            self._lose(lambda live: True, StaleAttempt if is_first else WorkerLost)
            raise StaleAttempt("another boot of the worker answered")
        self._peer_epoch = welcome.peer.epoch
        if is_first:
            return
        if not welcome.resumed:
            self._received = 0
            self._forget_cancelled()
            self._lose(lambda live: live.sent_in != self._session_number)
            return
        for handle in self._cancelled:
            self._send(pb.ConnectRequest(cancel=pb.Cancel(handle=handle)))
        for live in self._live.values():
            if not live.accepted and live.sent_in != self._session_number:
                self._send_submit(live)
            for finish in live.finished.values():
                self._send(pb.ConnectRequest(finish_choice=finish))

    def _lose(self, is_lost: Callable[[_Live], bool], kind: type[ServeError] = WorkerLost) -> None:
        for handle, live in list(self._live.items()):
            if is_lost(live):
                del self._live[handle]
                live.sink.on_lost(kind(f"worker {self.worker} is gone"))

    def _on_step(self, step: pb.StepOutputs) -> None:
        token_ids, logprobs = step.token_ids, step.logprobs
        tops = (
            {
                top.index: tuple(zip(top.token_ids, top.logprobs, strict=True))
                for top in step.tops
            }
            if step.tops
            else None
        )  # fmt: skip
        start, live_of = 0, self._live
        for handle, choice, first, count in zip(
            step.handles, step.choices, step.first_position, step.counts, strict=True
        ):
            end = start + count
            live = live_of.get(handle)
            if live is not None:
                own_tops: Tops | None = None
                if tops is not None:
                    own_tops = [tops.get(index, ()) for index in range(start, end)]
                live.sink.on_tokens(
                    choice, first, token_ids[start:end], logprobs[start:end] if logprobs else None, own_tops
                )
            start = end
        for event in step.events:
            self._on_event(event)

    def _on_event(self, event: pb.Event) -> None:
        kind = event.WhichOneof("event")
        handle = event.handle
        if kind in ("ended", "refused"):
            report = end_from_pb(event.ended) if kind == "ended" else None
            on_last_word = self._cancelled.pop(handle, None)
            if on_last_word is not None:
                on_last_word(report)
            gone = self._live.pop(handle, None)
            if gone is None:
                return
            if report is not None:
                gone.sink.on_ended(report)
            else:
                gone.sink.on_refused(convert.failure_from_pb(event.refused))
            return
        live = self._live.get(handle)
        if live is None:
            return  # It has ended here, and its worker did not know.
        if kind == "accepted":
            live.accepted, live.submit = True, None
            live.sink.on_accepted()
        elif kind == "started":
            live.sink.on_started(event.started.cached_tokens)
        elif kind == "prompt_scored":
            scored = event.prompt_scored
            live.sink.on_prompt_scored(scored.first_position, scored.logprobs, tops_from_pb(scored))
        elif kind == "preempted":
            live.sink.on_preempted()
        elif kind == "choice_ended":
            ended = event.choice_ended
            live.finished.pop(ended.choice, None)
            live.sink.on_choice_ended(ended.choice, convert.finish_from_pb(ended.reason), ended.output_tokens)
