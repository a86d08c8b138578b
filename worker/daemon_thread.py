"""Run blocking work in a thread that the process does not wait for when it leaves.

Knows nothing of the work.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_daemon_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Return what `work` will return, or raise."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as exc:
            error = exc
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="load", daemon=True).start()
    return future
