"""How often Python looks for garbage in cycles while the scheduler runs.

By default it does so after every 700 new objects, and walks all that waits each time that has grown by a
quarter: 50,000 requests are half a million objects. Requests come and go without cycles, so that counting
references frees them; what is left for the collector (exceptions with their frames) is rare.
"""

import gc

AFTER = (10_000, 20, 50)
"""New objects for a look at the young ones, such looks for one at the middle-aged, such for one at all."""


def collect_seldom() -> None:
    """Set it for this process."""
    gc.set_threshold(*AFTER)
