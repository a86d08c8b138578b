"""The one way in which these tests wait: look until it is good, or fail saying what was seen last."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

T = TypeVar("T")
LOOK_EVERY_S = 0.02


async def until(
    what: str,
    look: Callable[[], Awaitable[T]],
    *,
    limit_s: float,
    good: Callable[[T], bool] = bool,
) -> T:
    """Return the first good look; an OSError (a process that does not answer) is not good."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            seen: object = await look()
            if good(seen):  # type: ignore[arg-type]
                return seen  # type: ignore[return-value]
        except OSError as exc:
            seen = exc
        if time.monotonic() > deadline:
            pytest.fail(f"not within {limit_s:g} s: {what}; last seen: {seen!r}")
        await asyncio.sleep(LOOK_EVERY_S)
