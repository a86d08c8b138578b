"""Which band goes first: the highest, unless a lower one is owed its floor.

Knows the service of bands of one model; knows no tenant. A band with floor f earns f of all service while it
waits and pays what it gets; while it is owed something it goes first. So in any time in which it always has
something that can be placed, it gets at least f of the service, less one request and the cap of what can be
owed (`MOST_OWED`). What it did not ask for is not kept for it, nor held against it.
"""

from collections.abc import Iterable, Mapping

from services.domain.generation import Band

MOST_OWED = 4096.0
"""Most service, in tokens, that a band is owed or has had in advance: so no debt makes a long burst."""


class BandFloors:
    """What each band is owed, in tokens of service."""

    def __init__(self, floors: Mapping[Band, float], num_bands: int) -> None:
        size = num_bands + 1
        self._floors = [0.0] * size
        for band, floor in floors.items():
            self._floors[band] = floor
        self._owed = [0.0] * size

    def order(self, waiting: list[Band]) -> list[Band]:
        """Return the bands, given from high to low, in the order of their turn."""
        owed = self._owed
        if len(waiting) < 2:
            return waiting
        return sorted(waiting, key=lambda band: owed[band] <= 0.0)

    def served(self, band: Band, cost: float, waiting: Iterable[Band]) -> None:
        """Count service of one band while others wait."""
        for other in waiting:
            self._owed[other] = min(MOST_OWED, self._owed[other] + self._floors[other] * cost)
        self._owed[band] = max(-MOST_OWED, self._owed[band] - cost)

    def idle(self, band: Band) -> None:
        """A band has nothing waiting any more: it is owed nothing."""
        self._owed[band] = min(0.0, self._owed[band])
