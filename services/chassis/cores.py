"""How many cores this process may use. Knows nothing of what they are used for."""

import os


def num_cores() -> int:
    """Return how many cores this process may use: of its affinity where the system has one, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
