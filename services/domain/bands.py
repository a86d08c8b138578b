"""The names of the bands in the order in which they are served, as the scheduler's configuration has them.

The scheduler tells them to gateways. Between processes a band is its rank; a name is looked up where people
read or write one. Knows no floor and no tenant.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from services.domain.document_values import nearest_name, refused
from services.domain.generation import MAX_BANDS, Band


@dataclass(frozen=True, slots=True)
class Bands:
    """At least one name and at most `MAX_BANDS`, first served first."""

    names: tuple[str, ...] = ("interactive", "standard", "batch")

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= MAX_BANDS or len(set(self.names)) < len(self.names):
            raise ValueError(f"bands must be 1 to {MAX_BANDS} different names, got {', '.join(self.names)}")

    def __iter__(self) -> Iterator[Band]:
        return map(Band, range(1, len(self.names) + 1))

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def rank(self, name: str) -> Band:
        """Return a band by its name; a name that is none of them counts as the last band."""
        return Band(self.names.index(name) + 1 if name in self.names else len(self.names))

    def name(self, band: Band) -> str:
        """Return what a band is called; one beyond the last, as a wrong message has it, by number."""
        return self.names[band - 1] if 1 <= band <= len(self.names) else f"band {int(band)}"

    def check(self, where: str, name: str) -> None:
        """Refuse a name that is none of them.

        Raises:
            InvalidField: With the valid ones, and the nearest.
        """
        if name not in self.names:
            raise refused(where, "one of " + ", ".join(self.names), name, nearest_name(name, self.names))
