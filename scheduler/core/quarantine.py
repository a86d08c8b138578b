"""Which prompts are kept from workers because they were on two of them when these died.

A prompt that was on a worker when that died is a suspect; one that was on a second is quarantined: whoever
asks for a place for it, at any gateway, is refused until the time is up or an operator releases it. The
innocent are told from the guilty in three ways: a good end acquits of one death, the last before it that is
still held against the prompt or else the next; a boot that comes back takes its accusation back; suspects are
kept apart (`FaultWatch.not_now`), so that the next death accuses one of them, and of that death nothing
acquits. So a prompt is on at most `NUM_WORKERS` dying workers more than it has ended well, and who ends it
well on purpose, with an output of one token, buys one death by each and not all that follow.

Knows prompts by digest and workers by boot. Everything is bounded: the oldest is forgotten first, and after
`keep_s`. A scheduler that restarts is given those that were quarantined (`restore`), not the suspects.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scheduler.core.request import WorkerBoot

NUM_WORKERS = 2
"""Workers that a prompt may take with it."""
MAX_PROMPTS = 1024
"""Prompts kept from workers, and suspects."""
MAX_GOOD = 4096
"""Prompts remembered for their good end."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A prompt that is kept from workers."""

    digest: bytes
    boots: frozenset[WorkerBoot]
    """The boots that died with it, as far as this term saw them."""
    until: float

    @property
    def num_workers(self) -> int:
        """How many died with it, at least."""
        return max(NUM_WORKERS, len(self.boots))


class Quarantine:
    """Suspects and quarantined prompts.

    Args:
        keep_s: Seconds for which a prompt is suspected, and kept from workers; 0 suspects none.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._suspects: dict[bytes, tuple[float, dict[WorkerBoot, bool]]] = {}
        """Until when, and for each boot that died with it whether it was kept apart there."""
        self._held: dict[bytes, Quarantined] = {}
        self._good: dict[bytes, None] = {}
        """Prompts with a good end that has acquitted of nothing yet."""

    @property
    def is_empty(self) -> bool:
        """Whether no prompt is suspected or kept."""
        return not (self._suspects or self._held)

    def died(
        self, boot: WorkerBoot, digests: Iterable[bytes], now: float, *, apart: Collection[bytes] = ()
    ) -> list[bytes]:
        """A worker died with these prompts on it; return those that are quarantined by it.

        Args:
            apart: Suspects that were kept apart there.
        """
        new = []
        for digest in filter(None, digests) if self._keep_s > 0 else ():
            is_apart = digest in apart
            if digest in self._good and not is_apart:
                del self._good[digest]
                continue
            until, boots = self._suspects.pop(digest, (now, {}))
            boots = {**(boots if until > now else {}), boot: is_apart}
            self._suspects[digest] = now + self._keep_s, boots
            if len(boots) >= NUM_WORKERS and self.find(digest, now) is None:
                self._held[digest] = Quarantined(
                    digest=digest, boots=frozenset(boots), until=now + self._keep_s
                )
                new.append(digest)
        _shorten(self._suspects, MAX_PROMPTS)
        _shorten(self._held, MAX_PROMPTS)
        return new

    def restore(self, ends: Mapping[bytes, float], now: float) -> int:
        """Keep prompts from workers that an earlier term did, until their ends; return how many are new."""
        left = {digest: end for digest, end in ends.items() if end > now and digest not in self._held}
        for digest, end in left.items() if self._keep_s > 0 else ():
            self._held[digest] = Quarantined(digest=digest, boots=frozenset(), until=end)
        _shorten(self._held, MAX_PROMPTS)
        return len(left) if self._keep_s > 0 else 0

    def lives(self, boot: WorkerBoot) -> None:
        """The boot has come back: it did not die, and nobody is accused of it."""
        for digest, (_, boots) in list(self._suspects.items()):
            if boot in boots:
                self._acquit(digest, boot)

    def served(self, digest: bytes) -> None:
        """A prompt ended well: that acquits of one death, but of none while it was kept apart."""
        _, boots = self._suspects.get(digest, (0.0, {}))
        in_company = [boot for boot, is_apart in boots.items() if not is_apart]
        if in_company:
            self._acquit(digest, in_company[-1])
            return
        self._good.pop(digest, None)
        self._good[digest] = None
        _shorten(self._good, MAX_GOOD)

    def find(self, digest: bytes, now: float) -> Quarantined | None:
        """Return what is known of a prompt that is kept from workers now."""
        held = self._held.get(digest)
        if held is not None and held.until <= now:
            self.release(digest)
            return None
        return held

    def is_suspect(self, digest: bytes, now: float) -> bool:
        """Say whether the prompt was on a worker that died, and is not acquitted of it."""
        suspect = self._suspects.get(digest)
        if suspect is not None and suspect[0] <= now:
            self.release(digest)
            return False
        return suspect is not None

    def entries(self, now: float) -> list[Quarantined]:
        """Return all that are kept from workers now, the oldest first."""
        return [held for digest in list(self._held) if (held := self.find(digest, now)) is not None]

    def release(self, digest: bytes) -> bool:
        """Serve a prompt again, as if nothing had been; say whether it was kept."""
        self._suspects.pop(digest, None)
        return self._held.pop(digest, None) is not None

    def release_all(self) -> int:
        """Serve all of them again; return how many were kept."""
        num = len(self._held)
        self._suspects.clear()
        self._held.clear()
        return num

    # Inside

    def _acquit(self, digest: bytes, boot: WorkerBoot) -> None:
        """Take one accusation back, and with it what followed from it."""
        boots = self._suspects[digest][1]
        del boots[boot]
        held = self._held.get(digest)
        if held is not None and held.boots and len(boots) < NUM_WORKERS:
            del self._held[digest]  # What an earlier term saw is not taken back.
        if not boots:
            del self._suspects[digest]


def _shorten(table: dict[bytes, Value], most: int) -> None:
    while len(table) > most:
        del table[next(iter(table))]
