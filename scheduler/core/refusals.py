"""Who is refused: on arrival, and when a time of grace has ended without a worker.

The two last steps of the ladder refuse. Who has climbed to them by itself is refused; of a band that has, who
asks within its share and waits no longer than the band's target is let in, because it is others that press.

Knows what waits and which workers there are, and when to look again; removes nothing and sends nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile

from scheduler.core.admission import never_fits, place_in_queue, queue_full
from scheduler.core.degrade import Ladder
from scheduler.core.fleet import Fleet
from scheduler.core.placer import Placer
from scheduler.core.request import Acquire, WaitingRequest
from scheduler.core.rules import Rules
from scheduler.core.waiting_room import WaitingRoom
from services.domain.degradation import Degraded, Step
from services.domain.errors import ErrorDetail, LimitExpired, NoWorker, Overloaded, ServeError, UnknownModel
from services.domain.ids import RequestKey, TenantId

MOST_THROTTLED = 1
"""Requests of one tenant that may wait in a band that is throttled."""


class Refusals:
    """Says why a request cannot wait, or cannot wait any longer."""

    def __init__(
        self,
        rules: Rules,
        room: WaitingRoom,
        fleet: Fleet,
        placer: Placer,
        ladder: Ladder,
        now: float,
    ) -> None:
        self._rules = rules
        self._room = room
        self._fleet = fleet
        self._placer = placer
        self._ladder = ladder
        self.caps: Mapping[TenantId, int] = {}
        """Most KV pages of tenants over all workers, as the kvmanager said last."""
        self._boot_ends: float | None = now + rules.boot_grace_s
        self._impatient: dict[RequestKey, float] = {}
        """Requests that avoid workers, and when to see whether another is left for them: soonest first."""

    def on_arrival(self, request: WaitingRequest, now: float, *, resent: bool) -> ServeError | None:
        """Say why a request cannot wait, or None.

        Args:
            resent: It was let in before: it is not refused for the queue's bound.
        """
        model = request.acquire.model
        error = self._unservable(model) or self._never_fits(request.acquire)
        if error is not None or resent:
            return error
        if (overloaded := self._degraded(request.acquire, now)) is not None:
            return overloaded

        def wait_s() -> float | None:
            return self._placer.expected_wait_s(model, self._room.policy.num_waiting(model), now)

        return queue_full(request.acquire, self._room.policy, self._rules, wait_s)

    def let_in(self, request: WaitingRequest, now: float) -> None:
        """Look at a request again after a while if it may be that nobody is left for it."""
        if request.avoid:
            self._impatient[request.key] = now + self._rules.worker_grace_s

    def forget(self, request: WaitingRequest) -> None:
        """The request waits no more."""
        self._impatient.pop(request.key, None)

    def due(self, lost: Iterable[str], now: float) -> Iterator[tuple[WaitingRequest, ServeError]]:
        """Yield what waited for workers that did not come. Each has to leave before the next is asked for.

        Args:
            lost: Models that have fewer workers than before.
        """
        models = list(lost)
        if self._boot_ends is not None and self._boot_ends <= now:
            self._boot_ends = None
            models += self._room.policy.models()
        for model in models:
            for request in list(self._room.policy.candidates(model)):
                error = self._unservable(model) or self._never_fits(request.acquire)
                if error is not None:
                    yield request, error
        for key in [key for key, _ in takewhile(lambda one: one[1] <= now, self._impatient.items())]:
            del self._impatient[key]
            waiting = self._room.get(key.request_id)
            if waiting is None or waiting.key != key:
                continue
            if self._nobody_left(waiting):
                yield waiting, NoWorker("every worker of the model has failed this request")
            else:
                self._impatient[key] = now + self._rules.worker_grace_s

    def expired(self, request: WaitingRequest, now: float) -> LimitExpired:
        """Return the refusal of a request whose time ran out while it waited."""
        position, waited_s = request.shown_position, now - request.admitted
        wait_s = None
        if position is not None:
            wait_s = self._placer.expected_wait_s(request.acquire.model, position, now)
        return LimitExpired(
            f"a time limit ran out after {waited_s:.3f} s in the queue",
            ErrorDetail(metadata=place_in_queue(position, wait_s)),
        )

    def next_wake(self) -> float | None:
        """Return when `due` has something to do."""
        times = [self._boot_ends if len(self._room) else None, next(iter(self._impatient.values()), None)]
        return min((at for at in times if at is not None), default=None)

    def _degraded(self, acquire: Acquire, now: float) -> Overloaded | None:
        """Refuse what the ladder lets in no more; a further attempt was let in before."""
        where = acquire.model, acquire.band
        if self._ladder.step(*where, acquire.tenant) < Step.THROTTLE or acquire.key.attempt > 1:
            return None
        of_band, of_tenant = self._ladder.band_step(*where), self._ladder.tenant_step(*where, acquire.tenant)
        step = of_tenant
        whose: TenantId | None = acquire.tenant
        if of_band > of_tenant and not self._others_press(acquire, now):
            step, whose = of_band, None
        own = self._room.tenants.num_waiting(acquire.tenant, acquire.model, acquire.band)
        if step < Step.THROTTLE or (step is Step.THROTTLE and own < MOST_THROTTLED):
            return None
        band = self._rules.bands.name(acquire.band)
        who = f"its {band} band" if whose is None else f"this tenant in its {band} band"
        what = f"{own} requests of this tenant wait, " if step is Step.THROTTLE else ""
        # As of every step: what would have been its due, and what it gets.
        told = Degraded(step, str(own + 1), str(MOST_THROTTLED if step is Step.THROTTLE else 0))
        position = self._room.policy.num_waiting(acquire.model, acquire.band) + 1
        wait_s = self._placer.expected_wait_s(acquire.model, position, now)
        place = place_in_queue(position, wait_s)
        metadata = {"band": band, "waiting": str(own), **told.metadata, **place}
        return Overloaded(
            f"{what}{acquire.model} is overloaded and {who} degraded to step {step.name.lower()}",
            ErrorDetail(
                quota=f"degradation/{acquire.model}/{band}",
                retry_after_s=self._ladder.retry_after_s(*where, whose, now),
                metadata=metadata,
            ),
        )

    def _others_press(self, acquire: Acquire, now: float) -> bool:
        """Say whether the tenant has no part in its band's pressure: it asks within its share, so it passes
        whoever floods, and so it does, as none of its requests has waited for the target. The second matters
        where many small tenants are too much together: then each waits, and none is spared."""
        if not self._room.policy.asks_within_share(acquire.tenant, acquire.model, acquire.band):
            return False
        since = self._room.tenants.waits_since(acquire.tenant, acquire.model, acquire.band)
        return since is None or now - since < self._rules.ladder.targets_s[acquire.band]

    def _never_fits(self, acquire: Acquire) -> ServeError | None:
        return never_fits(acquire, self._fleet.capacities(acquire.model), self.caps.get(acquire.tenant))

    def _unservable(self, model: str) -> ServeError | None:
        if self._fleet.capacities(model) or self._boot_ends is not None:
            return None
        if self._fleet.ever_served(model):
            return NoWorker(f"no worker serves {model} now", ErrorDetail(retry_after_s=1.0))
        return UnknownModel(f"no worker serves a model {model}")

    def _nobody_left(self, request: WaitingRequest) -> bool:
        """Say whether the request avoids all workers of its model and none may come back."""
        model = request.acquire.model
        avoided = all(worker.boot in request.avoid for worker in self._fleet.serving(model))
        return avoided and not self._fleet.may_return(model)
