"""How a long fetch tells what it does: `progress(done_bytes, total_bytes, what)`.

Knows nothing of terminals.
"""

from collections.abc import Callable

Progress = Callable[[int, int, str], None]


def no_progress(done_bytes: int, total_bytes: int, what: str) -> None:
    """Tell nobody."""
