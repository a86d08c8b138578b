"""The gRPC door: turns messages into requests and events into messages.

Decides nothing: credentials, checks and everything after are the use case's.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import grpc

from gateway.core.auth import Authenticator
from gateway.core.ending import Failed
from gateway.core.events import Queued
from gateway.core.keys import KeyScope
from gateway.core.request import Caller
from gateway.generate import Generate
from gateway.grpc_credentials import caller_of, metadata
from gateway.limit_lookup import NOTHING, Subject
from gateway.messages import chat_from_pb, event_to_pb, queued_to_pb, receipt_to_pb, request_from_pb
from gateway.metrics import GatewayMetrics
from gateway.queries import InProgress, Queries
from protos.gateway.v1 import gateway_pb2 as pb
from protos.gateway.v1 import gateway_pb2_grpc
from services.domain.errors import ErrorDetail, ServeError
from services.domain.ids import RequestId
from services.rpc import convert
from services.rpc.usage import report_to_pb, splits_from_pb

LINGER_S = 30.0
"""Seconds in which a caller that was found too slow may still fetch what is on its way."""
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["GenerateService"].full_name


@dataclass(slots=True)
class _Call:
    """Who calls, and what the answer tells of its limits."""

    caller: Caller
    told: dict[str, str] = field(default_factory=dict)
    about: Subject = NOTHING


class GatewayService(gateway_pb2_grpc.GenerateServiceServicer):
    """Adapter of `GenerateService`."""

    def __init__(
        self, generate: Generate, queries: Queries, auth: Authenticator, metrics: GatewayMetrics
    ) -> None:
        self._generate = generate
        self._queries = queries
        self._auth = auth
        self._metrics = metrics

    async def Generate(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext) -> None:
        arrived = time.monotonic()
        async with self._serving(context) as call:
            call.about = Subject(request.model)
            await self._generations(request, context, call, arrived)

    async def _generations(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext, call: _Call, arrived: float
    ) -> None:
        # A slow caller blocks `write`; its request has ended by then, and the call must end some day too.
        linger: list[asyncio.TimerHandle] = []
        task = asyncio.current_task()
        assert task is not None

        def on_slow() -> None:
            linger.append(asyncio.get_running_loop().call_later(LINGER_S, task.cancel))

        run = self._generate.run(
            request_from_pb(request),
            call.caller,
            arrived=arrived,
            deadline_s=context.time_remaining(),
            traceparent=metadata(context, "traceparent") or "",
            on_slow=on_slow,
            on_headers=call.told.update,
        )
        with_ids, with_logprobs = request.return_token_ids, request.HasField("logprobs")
        building_s, has_begun = 0.0, False
        try:
            async with aclosing(run) as events:
                async for event in events:
                    started = time.perf_counter()
                    message = event_to_pb(event, with_ids=with_ids, with_logprobs=with_logprobs)
                    building_s += time.perf_counter() - started
                    if not has_begun:
                        has_begun = True
                        await context.send_initial_metadata(tuple(call.told.items()))
                    await context.write(message)
        finally:
            self._metrics.serialized(building_s)
            for timer in linger:
                timer.cancel()

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.TokenizeResponse:
        async with self._serving(context) as call:
            call.about = Subject(request.model)
            kind = request.WhichOneof("input")
            tokens = await self._queries.tokenize(
                call.caller,
                request.model,
                request.text if kind == "text" else None,
                chat_from_pb(request.chat) if kind == "chat" else None,
                return_bytes=request.return_bytes,
            )
            call.about = Subject(request.model, tokens.request_class)
            return pb.TokenizeResponse(
                ids=tokens.ids, bytes=tokens.token_bytes, max_context_tokens=tokens.max_context_tokens
            )

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListModelsResponse:
        async with self._serving(context) as call:
            return pb.ListModelsResponse(
                models=[
                    pb.Model(
                        name=model.name,
                        revision=model.revision,
                        max_context_tokens=model.capacity.max_context_tokens,
                        num_workers=model.num_workers,
                    )
                    for model in self._queries.served_models(call.caller)
                ]
            )

    async def GetRequest(
        self, request: pb.GetRequestRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetRequestResponse:
        async with self._serving(context) as call:
            found = await self._queries.request(call.caller, RequestId(request.request_id))
            if isinstance(found, Queued):
                return pb.GetRequestResponse(queued=queued_to_pb(found))
            if isinstance(found, InProgress):
                running = pb.Running(
                    worker=found.worker, attempt=found.attempt, output_tokens=found.output_tokens
                )
                return pb.GetRequestResponse(running=running)
            if isinstance(found, Failed):
                error = ServeError(found.message, ErrorDetail(usage=found.usage, metadata=found.metadata))
                error.code, error.reason = found.code, found.reason
                return pb.GetRequestResponse(failure=convert.failure_to_pb(error))
            return pb.GetRequestResponse(receipt=receipt_to_pb(found))

    async def GetUsage(
        self, request: pb.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetUsageResponse:
        async with self._serving(context, KeyScope.USAGE) as call:
            by = splits_from_pb(request.by)
            report = await self._queries.usage.of_one(call.caller.tenant, period=request.period, by=by)
            return pb.GetUsageResponse(report=report_to_pb(report))

    @asynccontextmanager
    async def _serving(
        self, context: grpc.aio.ServicerContext, scope: KeyScope = KeyScope.GENERATE
    ) -> AsyncIterator[_Call]:
        """Give the caller of one call; its trailing metadata tells how it stands, however the call ends."""
        call = _Call(caller_of(self._auth, context))
        try:
            self._auth.require(call.caller, scope)
            yield call
        except ServeError as error:
            call.told |= error.detail.rate_limits
            raise
        finally:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                told = call.told or await self._queries.limits.headers_of(call.caller, call.about)
                context.set_trailing_metadata(tuple(told.items()))
