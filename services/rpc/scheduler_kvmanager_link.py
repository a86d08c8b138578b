"""The scheduler's stream to the kvmanager: asks where prompts are cached.

Answers come when they come, or never: how long to wait is the caller's business. Knows nothing of queues.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import grpc

from protos.kvmanager.v1 import kvmanager_pb2 as pb
from protos.kvmanager.v1 import kvmanager_pb2_grpc
from protos.types.v1 import types_pb2
from services.chassis.stream import Outbox, keep_connected, run_duplex
from services.domain.ids import BlockHash, Epoch, Namespace, RequestKey, TenantId, WorkerId
from services.domain.miss_reason import MissReason
from services.rpc import convert

MAX_PENDING = 4096
"""Questions remembered; beyond that the oldest is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchAnswer:
    """Where a prompt's prefix is cached."""

    tokens: Mapping[tuple[WorkerId, Epoch], int]
    miss_reason: MissReason
    """Of the best match."""
    first_miss_token: int


class KvManagerLink:
    """Owns the stream and the numbering of questions.

    Args:
        epoch: This boot of the scheduler; asked for at each connect, for it changes after waking up.
        on_answer: Hears each answer with the key it was asked under.
        on_connected: Hears when questions begin and cease to make sense.
        on_caps: Hears the most KV pages that each capped tenant may hold over all workers.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        name: str,
        epoch: Callable[[], Epoch],
        build: str,
        on_answer: Callable[[RequestKey, MatchAnswer], None],
        on_connected: Callable[[bool], None],
        on_caps: Callable[[Mapping[TenantId, int]], None],
    ) -> None:
        self._stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)  # type: ignore[no-untyped-call]
        self._name = name
        self._epoch = epoch
        self._build = build
        self._on_answer = on_answer
        self._on_connected = on_connected
        self._on_caps = on_caps
        self._pending: dict[int, RequestKey] = {}
        self._last_id = 0
        self._outbox: Outbox[pb.MatchRequest] | None = None

    async def run(self) -> NoReturn:
        """Keep the stream up until cancelled."""
        await keep_connected("kvmanager", self._session)

    def ask(
        self,
        key: RequestKey,
        hashes: Sequence[BlockHash],
        *,
        tenant: TenantId,
        own_salt: bool,
        namespace: Namespace | None,
        traceparent: str = "",
    ) -> None:
        """Ask for the longest cached prefix per worker; without a connection nothing happens."""
        if self._outbox is None:
            return
        self._last_id += 1
        self._pending[self._last_id] = key
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        query = pb.MatchQuery(
            id=self._last_id,
            hashes=b"".join(hashes),
            tenant=tenant,
            own_salt=own_salt,
            namespace=namespace,
            traceparent=traceparent,
        )
        self._outbox.put_nowait(pb.MatchRequest(query=query))

    async def _session(self) -> None:
        outbox: Outbox[pb.MatchRequest] = Outbox()
        outbox.put_nowait(pb.MatchRequest(hello=convert.peer_to_pb(self._name, self._epoch(), self._build)))
        self._outbox = outbox
        try:
            await run_duplex(self._stub.Match, outbox, self._on_message, _heartbeat)
        finally:
            self._outbox = None
            self._pending.clear()
            self._on_connected(False)

    def _on_message(self, message: pb.MatchResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "welcome":
            convert.check_peer(message.welcome)
            if self._outbox is not None:
                self._outbox.gathers = message.welcome.reads_several
            self._on_connected(True)
        elif kind == "caps":
            self._on_caps({TenantId(tenant): pages for tenant, pages in message.caps.max_pages.items()})
        elif kind == "answer":
            key = self._pending.pop(message.answer.id, None)
            if key is not None:
                self._on_answer(key, _answer_from_pb(message.answer))


def _answer_from_pb(answer: pb.MatchAnswer) -> MatchAnswer:
    return MatchAnswer(
        tokens={(WorkerId(one.worker), Epoch(one.epoch)): one.tokens for one in answer.matches},
        miss_reason=convert.miss_reason_from_pb(answer.miss_reason),
        first_miss_token=answer.first_miss_token,
    )


def _heartbeat() -> pb.MatchRequest:
    return pb.MatchRequest(heartbeat=types_pb2.Heartbeat())
