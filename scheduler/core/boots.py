"""Tells the newest boot of each peer from earlier ones.

Knows names and epochs; forgets the names it has not heard of for longest.
"""

from services.domain.errors import StaleAttempt
from services.domain.ids import Epoch

MAX_NAMES = 10_000


class Boots:
    """The highest epoch seen per name."""

    def __init__(self) -> None:
        self._epochs: dict[str, Epoch] = {}

    def accept(self, name: str, epoch: Epoch) -> None:
        """Take note of a peer's boot.

        Raises:
            StaleAttempt: A newer boot of the same name was here; this one was stopped and woke up, or two
                processes share a name.
        """
        known = self._epochs.pop(name, None)
        self._epochs[name] = max(epoch, known or epoch)
        if known is not None and epoch < known:
            raise StaleAttempt(f"{name} of epoch {epoch}: epoch {known} was seen")
        if len(self._epochs) > MAX_NAMES:
            del self._epochs[next(iter(self._epochs))]
