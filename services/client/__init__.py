"""The Python client of Quire: `Client` for threads, `AsyncClient` for asyncio.

Errors are the typed ones of `services.domain.errors`, and `IncompleteStream`.
"""

from services.client.async_client import AsyncClient
from services.client.errors import IncompleteStream
from services.client.request import Options
from services.client.stream import AsyncEventStream, EventStream
from services.client.sync_client import Client
from services.client.values import (
    Choice,
    Completion,
    Delta,
    Echo,
    Event,
    Failed,
    Finished,
    Input,
    Message,
    Model,
    Queued,
    Receipt,
    RequestState,
    Running,
    Started,
    StillWaiting,
    TokenLogprob,
    Tokens,
    TopLogprob,
)
from services.domain.errors import ServeError

__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "Choice",
    "Client",
    "Completion",
    "Delta",
    "Echo",
    "Event",
    "EventStream",
    "Failed",
    "Finished",
    "IncompleteStream",
    "Input",
    "Message",
    "Model",
    "Options",
    "Queued",
    "Receipt",
    "RequestState",
    "Running",
    "ServeError",
    "Started",
    "StillWaiting",
    "TokenLogprob",
    "Tokens",
    "TopLogprob",
]
