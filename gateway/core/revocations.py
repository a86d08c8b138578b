"""Which keys were seen to end, so that a store which forgets it opens them to nobody.

An id is drawn once and never given again, so what has ended stays ended, whatever a store says that was put
back to an earlier state. Knows what this process saw and nothing of what came before its start.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gateway.core.keys import ApiKey

MAX_KEPT = 65_536
REVOKED = 0.0
"""The end of a key that was taken away."""


class Revocations:
    """Ends of keys by id, in seconds since 1970: the earliest that was seen of each."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def saw(self, key_id: str, after: Mapping[str, Any] | None) -> None:
        """Take note of a key's record after a change of it; None: it was taken away."""
        end = REVOKED if after is None else after.get("expires_at")
        if end is None or end >= self._ends.get(key_id, end + 1):
            return
        self._ends.pop(key_id, None)
        self._ends[key_id] = end
        if len(self._ends) > MAX_KEPT:
            del self._ends[next(iter(self._ends))]

    def applied_to(self, key: ApiKey) -> ApiKey | None:
        """Return a key as it is by what was seen; None: it was taken away."""
        end = self._ends.get(key.id)
        if end is None or (key.expires_at is not None and key.expires_at <= end):
            return key
        return None if end == REVOKED else dataclasses.replace(key, expires_at=end)
