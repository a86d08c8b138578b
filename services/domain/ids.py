"""Names of the things that processes talk about.

Knows nothing of transport: the same values travel in protobuf fields, logs and metrics.
"""

from typing import NamedTuple, NewType

TenantId = NewType("TenantId", str)
RequestId = NewType("RequestId", str)
GatewayId = NewType("GatewayId", str)
WorkerId = NewType("WorkerId", str)

Epoch = NewType("Epoch", int)
"""One boot of one process: microseconds since 1970 when it started. Larger is newer."""

BlockHash = NewType("BlockHash", bytes)
"""16 bytes that name the content of one block and everything before it (see `block_hash`)."""

Namespace = NewType("Namespace", str)
"""Hex digest of weights, KV format, layout and numerics: KV is interchangeable only inside it."""

PROTOCOL_VERSION = 1
"""Every Hello carries it; a peer of another version is refused."""


class RequestKey(NamedTuple):
    """One placement of a request. The same key attaches, a higher attempt supersedes, a lower is refused.

    A tuple, because tables are asked by it all the time: its hash is computed without Python code.
    """

    request_id: RequestId
    attempt: int
