"""What the sync and the async client share: where to, as whom, for how long.

Knows how a call is addressed and authenticated; makes no call itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import grpc

from services.chassis.telemetry import inject
from services.domain.errors import InvalidField

DEFAULT_TARGET: Final = "127.0.0.1:50051"
GENERATE_TIMEOUT_S: Final = 600.0
"""Default deadline of a generation, from the call to its receipt."""
UNARY_TIMEOUT_S: Final = 10.0
"""Deadline of every other call."""
CHANNEL_OPTIONS: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384))
"""A small fixed window: a stream that nobody reads is felt by the gateway instead of filling this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Settings of one client."""

    target: str
    """`host:port` of a gateway."""
    api_key: str | None = field(repr=False)
    """None is the tenant of the loopback address."""
    model: str | None
    """Used where a call names none."""
    timeout_s: float
    """Seconds for a generation where the call names none."""
    credentials: grpc.ChannelCredentials | None
    """TLS; None is plain text."""
    metadata: Mapping[str, str]
    """Sent with every call, e.g. `traceparent`."""

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Headers of a call: the key travels here and nowhere else, and the caller's trace goes on."""
        headers = tuple(self.metadata.items())
        current = inject()
        if current and "traceparent" not in self.metadata:
            headers = (*headers, ("traceparent", current))
        return headers if self.api_key is None else (*headers, ("authorization", f"Bearer {self.api_key}"))

    def model_for(self, given: str | None) -> str:
        """Return the model of a call.

        Raises:
            InvalidField: Neither the call nor the client names one.
        """
        model = given or self.model
        if model is None:
            raise InvalidField("model", "name a model in the call or when making the client")
        return model

    def deadline_for(self, given_s: float | None) -> float:
        return self.timeout_s if given_s is None else given_s
