"""Keeps what a peer has not yet confirmed, by position, so that a broken stream goes on where it was.

Knows nothing of what the messages are or of how they travel.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Generic, TypeVar

Message = TypeVar("Message")


class ResendBuffer(Generic[Message]):
    """Messages at positions 1, 2, 3, ... of which the oldest are forgotten once confirmed."""

    def __init__(self, max_messages: int) -> None:
        self._messages: deque[Message] = deque()
        self._max_messages = max_messages
        self._confirmed = 0

    @property
    def last(self) -> int:
        """Position of the newest message; 0 when there was none."""
        return self._confirmed + len(self._messages)

    @property
    def is_full(self) -> bool:
        """The peer is further behind than we keep."""
        return len(self._messages) >= self._max_messages

    def append(self, message: Message) -> int:
        """Keep `message` and return its position."""
        self._messages.append(message)
        return self.last

    def confirm(self, position: int) -> None:
        """Forget everything up to `position`; an old or impossible confirmation changes nothing."""
        if position <= self.last:
            while self._confirmed < position:
                self._messages.popleft()
                self._confirmed += 1

    def can_resume_after(self, position: int) -> bool:
        return self._confirmed <= position <= self.last

    def after(self, position: int) -> Sequence[Message]:
        """Return the kept messages that follow `position`, oldest first."""
        return list(islice(self._messages, max(0, position - self._confirmed), None))
