"""Chooses who loses its pages when somebody more important needs them.

Knows bands, the tenants' last ranks and what a victim would have to compute again; changes nothing.
"""

from collections.abc import Iterable, Mapping

from services.domain.ids import TenantId
from worker.engine.request import Request
from worker.engine.sequence import Sequence


def may_be_taken_for(victim: Request, request: Request, ranks: Mapping[TenantId, float]) -> bool:
    """Say whether `request`, which has no room, may have that of `victim`.

    That of a lower band always; inside a band that of a tenant over its share, unless its own is over it too.
    A tenant nobody has ranked yet was within its share when its request was placed.
    """
    if victim.band != request.band:
        return victim.band > request.band
    return ranks.get(victim.tenant, 0.0) > 0.0 >= ranks.get(request.tenant, 0.0)


def choose_victim(candidates: Iterable[Sequence], ranks: Mapping[TenantId, float]) -> Sequence | None:
    """Return the victim: lowest band, then the tenant furthest over its share, then least recompute.

    Among equals the youngest. A sequence that holds its worst case, or no pages, is no victim. With a bounded
    number of preemptions per sequence (afterwards it is reserved), preemption comes to an end: somebody can
    always yield, and whoever holds its worst case runs to its end.
    """
    return max(
        (seq for seq in candidates if seq.is_started and not seq.reserved),
        key=lambda seq: (
            seq.request.band,
            ranks.get(seq.request.tenant, 0.0),
            -seq.num_computed,
            seq.request.arrival,
            seq.choice,
        ),
        default=None,
    )
