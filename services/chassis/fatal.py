"""Failures that end a process at once, told to a person in one line.

Knows nothing of what failed: whoever raises `FatalError` says what is wrong and what to do about it.
"""

import os
import sys
from collections.abc import Callable


class FatalError(Exception):
    """The process cannot go on. The message is one line: what is wrong and what to do."""

    exit_code = 1


class ConfigError(FatalError):
    """A configuration value, key or flag is not acceptable."""

    exit_code = 2


class BusyPort(FatalError):
    """Another process listens where this one should."""

    exit_code = 3

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} on {host} is in use: stop the process that holds it, "
            "or choose another with --port (all at once: quire up --port-offset N)"
        )
        self.port = port


class EngineFailed(FatalError):
    """What computes is beyond repair: memory ran out, the device failed or a step hangs. Start it again."""

    exit_code = 4


def entry(main: Callable[[], int]) -> int:
    """Run a program's `main`; a `FatalError` becomes one line on stderr and its exit code."""
    try:
        return main()
    except FatalError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if isinstance(error, EngineFailed):
            # Threads may be inside of what failed, and an interpreter that is taken down under them aborts.
            sys.stdout.flush()
            os._exit(error.exit_code)
        return error.exit_code
