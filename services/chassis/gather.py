"""Several messages of a stream as one: what is queued when the writer comes goes out together.

One message costs its process, over gRPC and asyncio, ten times what is in it; a lone one waits for nothing.
An envelope that can be gathered has the field `several`, repeated of its own type. Knows no other field.
"""

from collections import deque
from typing import Any

MOST_TOGETHER = 256
"""Messages in one: what a reader handles without giving way."""
MOST_BYTES = 2**20
"""Beyond it no further message goes along; a channel takes 16 times that."""


def take_together(messages: deque[Any]) -> Any:
    """Take the first messages out, at least one, and return what to send for them."""
    first = messages.popleft()
    if not messages:
        return first
    together = [first, *take_fitting(messages, MOST_TOGETHER - 1, MOST_BYTES - first.ByteSize())]
    return first if len(together) == 1 else type(first)(several=together)


def take_fitting(messages: deque[Any], most: int = MOST_TOGETHER, most_bytes: int = MOST_BYTES) -> list[Any]:
    """Take the first messages out that are no more and no larger than that together; maybe none."""
    taken: list[Any] = []
    while messages and len(taken) < most:
        most_bytes -= messages[0].ByteSize()
        if most_bytes < 0:
            break
        taken.append(messages.popleft())
    return taken


def each(message: Any) -> Any:
    """Return the messages inside of one that was read, in their order."""
    return getattr(message, "several", None) or (message,)
