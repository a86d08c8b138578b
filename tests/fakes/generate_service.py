"""A small GenerateService that plays a script, for tests of clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc

from protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from protos.types.v1 import types_pb2
from services.domain.errors import ServeError, UnknownRequest

SCRIPT_TEXT = "Hello, wörld"


def started() -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(
        started=gateway_pb2.Started(
            request_id="r1", model="m", model_revision="abc", prompt_tokens=20, cached_tokens=16, seed=7
        )
    )


def echo() -> gateway_pb2.GenerateResponse:
    """The prompt `ab`, scored."""
    top = gateway_pb2.TopLogprob(token_id=99, token=b"c", logprob=-0.25)
    tokens = [
        gateway_pb2.TokenLogprob(token_id=97, token=b"a"),
        gateway_pb2.TokenLogprob(token_id=98, token=b"b", logprob=-0.5, top=[top]),
    ]
    return gateway_pb2.GenerateResponse(echo=gateway_pb2.Echo(text="ab", token_ids=[97, 98], logprobs=tokens))


def delta(text: str, choice: int = 0) -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(
        delta=gateway_pb2.Delta(choice=choice, text=text, token_ids=[len(text)])
    )


def finished(choice: int = 0) -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(
        finished=gateway_pb2.Finished(
            choice=choice, reason=types_pb2.FINISH_REASON_STOP_STRING, stop_string="END", output_tokens=3
        )
    )


def receipt() -> gateway_pb2.GenerateResponse:
    return gateway_pb2.GenerateResponse(
        receipt=gateway_pb2.Receipt(
            request_id="r1",
            usage=types_pb2.Usage(prompt_tokens=20, cached_tokens=16, output_tokens=3),
            ttft_ms=1.5,
            worker="worker-0",
            attempts=1,
            cache=gateway_pb2.CacheReport(miss_reason=types_pb2.MISS_REASON_NEVER_SEEN, first_miss_token=16),
            exact=True,
        )
    )


def whole_answer() -> list[gateway_pb2.GenerateResponse]:
    queued = gateway_pb2.GenerateResponse(queued=gateway_pb2.Queued(request_id="r1", position=2))
    still = gateway_pb2.GenerateResponse(still_waiting=gateway_pb2.StillWaiting())
    return [queued, still, started(), delta("Hello, "), delta("wörld"), finished(), receipt()]


class FakeGenerateService(gateway_pb2_grpc.GenerateServiceServicer):  # type: ignore[misc]
    """Answers every Generate with `script`, then `error`, or waits for the caller to leave."""

    def __init__(self) -> None:
        self.script: Sequence[gateway_pb2.GenerateResponse] = whole_answer()
        self.error: ServeError | None = None
        self.hold = False
        self.requests: list[gateway_pb2.GenerateRequest] = []
        self.metadata: dict[str, str] = {}
        self.remaining_s: float | None = None
        self.left = asyncio.Event()

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        self._note(context)
        self.requests.append(request)
        try:
            for response in self.script:
                yield response
            if self.error is not None:
                raise self.error
            if self.hold:
                await asyncio.Event().wait()
        finally:
            self.left.set()

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.ListModelsResponse:
        self._note(context)
        model = gateway_pb2.Model(name="m", revision="abc", max_context_tokens=2048, num_workers=1)
        return gateway_pb2.ListModelsResponse(models=[model])

    async def Tokenize(
        self, request: gateway_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.TokenizeResponse:
        text = request.text or "".join(message.content for message in request.chat.messages)
        pieces = [char.encode() for char in text]
        return gateway_pb2.TokenizeResponse(
            ids=[ord(char) for char in text],
            bytes=pieces if request.return_bytes else [],
            max_context_tokens=2048,
        )

    async def GetRequest(
        self, request: gateway_pb2.GetRequestRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.GetRequestResponse:
        match request.request_id:
            case "running":
                return gateway_pb2.GetRequestResponse(
                    running=gateway_pb2.Running(worker="worker-0", attempt=1)
                )
            case "failed":
                failure = types_pb2.Failure(code=14, reason="WORKER_LOST", message="worker-0 died")
                return gateway_pb2.GetRequestResponse(failure=failure)
            case "r1":
                return gateway_pb2.GetRequestResponse(receipt=receipt().receipt)
            case _:
                raise UnknownRequest(f"no request {request.request_id}")

    def _note(self, context: grpc.aio.ServicerContext) -> None:
        self.metadata = dict(context.invocation_metadata())
        self.remaining_s = context.time_remaining()
