"""What became of a request, as kept for whoever asks later: its receipt, or how it failed.

Holds numbers and names only, never text of prompts or outputs.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core.events import Receipt
from services.domain.degradation import Degraded, Step
from services.domain.errors import Code, ServeError
from services.domain.generation import Usage
from services.domain.ids import RequestId
from services.domain.miss_reason import MissReason


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that did not end well."""

    request_id: RequestId
    code: Code
    reason: str
    message: str
    usage: Usage
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Numbers behind the failure."""

    @classmethod
    def of(cls, request_id: RequestId, error: ServeError, usage: Usage) -> "Failed":
        return cls(request_id, error.code, error.reason, error.message, usage, error.detail.metadata)


Ending = Receipt | Failed


def encode_ending(ending: Ending) -> bytes:
    """Return `ending` as JSON."""
    values = _fields_of(ending)
    values["usage"] = _fields_of(ending.usage)
    if isinstance(ending, Failed):
        values["code"], values["metadata"] = ending.code.name, dict(ending.metadata)
    else:
        values["degraded"] = [_fields_of(one) for one in ending.degraded]
    return json.dumps(values, separators=(",", ":")).encode()


def decode_ending(data: bytes) -> Ending:
    """Read what `encode_ending` wrote."""
    values = json.loads(data)
    values["usage"] = Usage(**values["usage"])
    if "code" in values:
        return Failed(**values | {"code": Code[values["code"]]})
    degraded = tuple(
        Degraded(Step(one["step"]), one["asked"], one["served"]) for one in values.get("degraded", ())
    )
    return Receipt(**values | {"miss_reason": MissReason(values["miss_reason"]), "degraded": degraded})


def _fields_of(value: Ending | Usage | Degraded) -> dict[str, Any]:
    """As `dataclasses.asdict`, without the deep copy that takes three times as long as all the rest."""
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
