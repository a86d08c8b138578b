"""The scheduler as a pure state machine: inputs with `now` come in, messages to send come out.

The one owner of queue, fleet and placements. Reads no clock and sends nothing; the dispatcher does both.
Inputs only take note; `place` decides, so whatever arrived together is placed together.
"""

from collections.abc import Collection, Sequence

from scheduler.core.credits import Report, WorkerHello
from scheduler.core.degrade import Ladder
from scheduler.core.fault_watch import FaultWatch
from scheduler.core.fleet import Fleet
from scheduler.core.live import LiveTable
from scheduler.core.load_watch import LoadWatch, told
from scheduler.core.outputs import ModelsChanged, Output, PlacementsMade, Rejected
from scheduler.core.placer import Placer
from scheduler.core.policy import QueuePolicy
from scheduler.core.positions import Positions
from scheduler.core.ranking import ranks_for
from scheduler.core.refusals import Refusals
from scheduler.core.request import Acquire, Match, Terms, WaitingRequest, earliest_limit
from scheduler.core.rules import Rules
from scheduler.core.waiting_room import WaitingRoom
from services.domain.degradation import Step
from services.domain.errors import ServeError, StaleAttempt
from services.domain.ids import GatewayId, RequestKey, WorkerId

FRESH_S = 0.25
"""A request that says it waited less than this was on its way here; one that waited longer comes back."""


class SchedulerCore:
    """All that the scheduler knows in one term."""

    def __init__(self, rules: Rules, policy: QueuePolicy, now: float) -> None:
        self.rules = rules
        self.room = WaitingRoom(policy)
        self.ladder = Ladder(rules.ladder)
        self.fleet = Fleet(rules.worker_grace_s, self.ladder.steps, rules.batch_wait_s)
        self.live = LiveTable()
        self.num_rejected = 0
        self.faults = FaultWatch(rules, self.fleet, self.live)
        self._placer = Placer(rules, self.room, self.fleet, self.live, self.faults)
        self._positions = Positions(rules, self.room, self._placer)
        self._load_watch = LoadWatch(self.ladder, self.room, self.fleet)
        self.refusals = Refusals(rules, self.room, self.fleet, self._placer, self.ladder, now)
        self._outputs: list[Output] = []

    @property
    def num_placed(self) -> int:
        return self._placer.num_placed

    # Gateways

    def gateway_connected(self, gateway: GatewayId, waiting: Sequence[Acquire], now: float) -> list[Output]:
        """A gateway said hello, and what it waits for; nothing of an earlier connection is left."""
        self._drop_gateway(gateway)
        for acquire in waiting:
            self._take_in(gateway, acquire, now, resent=True)
        return self._taken()

    def known_to_gateways(self) -> list[Output]:
        """Return what a gateway that connects has to know."""
        return [ModelsChanged(self.fleet.models()), *told(tuple(self.ladder.tenants()))]

    def gateway_gone(self, gateway: GatewayId) -> list[Output]:
        """A gateway's stream broke: what it waits for goes, what it did not submit is given back."""
        self._drop_gateway(gateway)
        return self._taken()

    def acquire(self, gateway: GatewayId, acquire: Acquire, now: float) -> list[Output]:
        """A gateway asks for a place."""
        self._take_in(gateway, acquire, now, resent=False)
        return self._taken()

    def edited(self, gateway: GatewayId, terms: Terms) -> None:
        """A gateway says what edits of tenants changed for what they have here."""
        self.room.edited(gateway, terms)

    def abandon(self, key: RequestKey, seq: int | None) -> list[Output]:
        """A gateway will not submit this key: it waits no more, or gives placement `seq` back."""
        request = self.room.get(key.request_id)
        if request is not None and request.key == key:
            self._leave(request)
        else:
            self._give_back(key, seq)
        return self._taken()

    # Workers

    def worker_connected(self, hello: WorkerHello, now: float) -> list[Output]:
        """A worker said hello. Credits and placement numbers start anew."""
        prompts, quarantined = self.faults.connected(hello, now)
        self._drop_worker(hello.worker, now, kept=frozenset(hello.live))
        self.fleet.connect(hello, now)
        self.faults.show(hello.worker)
        for key in hello.live:
            self.live.add(key, hello.worker, digest=prompts.get(key.request_id, b""))
        self._reject_quarantined(quarantined, now)
        self._outputs.append(ModelsChanged(self.fleet.models()))
        return self._taken()

    def worker_gone(self, worker: WorkerId, now: float) -> list[Output]:
        """A worker died or left. What was placed there comes back from its gateway as a further attempt."""
        quarantined = self.faults.gone(self.fleet.workers[worker], now)
        self._drop_worker(worker, now)
        self._outputs.append(ModelsChanged(self.fleet.models()))
        self._reject_quarantined(quarantined, now)
        return self._taken()

    def report(self, worker: WorkerId, report: Report, now: float) -> list[Output]:
        """A worker says how much it takes."""
        view, policy = self.fleet.workers[worker], self.room.policy
        self._placer.reported(view)
        was_draining = view.draining
        for tenant, use in view.apply(report, now).items():
            policy.used(worker, tenant, use.output)
            self.room.tenants.used(tenant, use)
        for key in report.started:
            self.live.add(key, worker)
        self.faults.reported(worker, report, now)
        for key in report.ended:
            self.live.ended(key, now)
            policy.ended(key, report.prompts.get(key))
        for key in view.overdue(now):
            view.resolve(key)
            self.live.remove(key)
            policy.given_back(key)
        if view.draining and not was_draining:
            self._leaves(worker, now)
        self._outputs += ranks_for(view, policy, now, self.rules.ranks_every_s)
        return self._taken()

    def drain(self, worker: WorkerId, now: float) -> list[Output]:
        """Place nothing more on a worker."""
        view = self.fleet.workers[worker]
        if not view.draining:
            view.draining = True
            self._leaves(worker, now)
        return self._taken()

    # The kvmanager

    def set_matching(self, on: bool) -> None:
        """The kvmanager can be asked, or not any more."""
        self._placer.matching = on

    def match_answered(self, key: RequestKey, match: Match) -> None:
        """The kvmanager answered; too late an answer helps as long as the request waits."""
        request = self.room.get(key.request_id)
        if request is not None and request.key == key:
            self._placer.match_answered(request, match)

    # Time

    def place(self, now: float) -> list[Output]:
        """Drop what expired, place what can be placed, tell the others where they stand."""
        for request in self.room.expired(now):
            self._reject(request, self.refusals.expired(request, now), now)
        if lost := self.fleet.forget(now):
            self._outputs.append(ModelsChanged(self.fleet.models()))
        for request, error in self.refusals.due(lost, now):
            self._reject(request, error, now)
        if self.ladder.is_due(now):
            self._outputs += self._load_watch.look(now)
        self.faults.tick(now)
        self._outputs += self._placer.place(now)
        self._outputs += self._positions.update(now)
        return self._taken()

    def next_wake(self) -> float | None:
        """Return when `place` must be called although nothing came in; None: not before something does."""
        waiting = len(self.room) > 0
        times = [self.room.next_deadline(), self._placer.next_wake(), self.fleet.next_forget()]
        times += [self.ladder.next_look(is_waiting=waiting), self.refusals.next_wake()]
        times += [self.faults.next_wake(), self._positions.next_wake()] if waiting else []
        return min((at for at in times if at is not None), default=None)

    def expected_wait_s(self, model: str, position: int, now: float) -> float | None:
        return self._placer.expected_wait_s(model, position, now)

    # Inside

    def _taken(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _take_in(self, gateway: GatewayId, acquire: Acquire, now: float, *, resent: bool) -> None:
        if not self._is_news(gateway, acquire, now):
            return
        resent = resent or acquire.waited_s >= FRESH_S
        request = WaitingRequest(
            acquire=acquire,
            gateway=gateway,
            arrived=now - acquire.waited_s if resent else now,
            admitted=now,
            deadline=earliest_limit(acquire.limits, now),
            avoid=self.fleet.boots(acquire.avoid),
        )
        error = self.faults.arrived(request, now) or self.refusals.on_arrival(request, now, resent=resent)
        if error is not None:
            self._refuse(gateway, acquire, error, now)
            return
        self._placer.settle_match(request, now)
        self.room.add(request)
        self._positions.arrived(request)
        step = self.ladder.step(acquire.model, acquire.band, acquire.tenant)
        self._placer.open_window(acquire.model, now, is_held=step < Step.BATCH_WAIT)
        self.refusals.let_in(request, now)

    def _is_news(self, gateway: GatewayId, acquire: Acquire, now: float) -> bool:
        """Attach a known key, refuse an old attempt, end what a new one supersedes."""
        key = acquire.key
        waiting = self.room.get(key.request_id)
        if waiting is not None:
            if waiting.key.attempt == key.attempt and waiting.gateway == gateway:
                self._positions.arrived(waiting)
                return False
            if waiting.key.attempt > key.attempt:
                self._refuse(gateway, acquire, _superseded(waiting.key), now)
                return False
            self._reject(waiting, _superseded(key), now)
        live = self.live.get(key.request_id)
        if live is None:
            return True
        attempt, worker = live
        if attempt < key.attempt:
            self._give_back(RequestKey(key.request_id, attempt), None)
            return True
        placement = self.fleet.workers[worker].outstanding.get(key)
        if placement is not None and placement.gateway == gateway:
            self._outputs.append(placement.output)
        else:
            self._refuse(gateway, acquire, _superseded(RequestKey(key.request_id, attempt)), now)
        return False

    def _reject(self, request: WaitingRequest, error: ServeError, now: float) -> None:
        """End a waiting request with an error."""
        self._leave(request)
        self._refuse(request.gateway, request.acquire, error, now, since=request.arrived)

    def _refuse(
        self,
        gateway: GatewayId,
        acquire: Acquire,
        error: ServeError,
        now: float,
        *,
        since: float | None = None,
    ) -> None:
        waited_s = acquire.waited_s if since is None else now - since
        self.num_rejected += 1
        self._outputs.append(Rejected(gateway=gateway, acquire=acquire, error=error, waited_s=waited_s))

    def _reject_quarantined(self, digests: Collection[bytes], now: float) -> None:
        for request, error in self.faults.refused(self.room.all(), now) if digests else ():
            self._reject(request, error, now)

    def _leave(self, request: WaitingRequest) -> None:
        self.room.remove(request)
        self._placer.forget(request)
        self.refusals.forget(request)

    def _give_back(self, key: RequestKey, seq: int | None) -> None:
        """A placement will not be submitted: tell its worker."""
        live = self.live.get(key.request_id)
        if live is None or live[0] != key.attempt:
            return
        view = self.fleet.workers[live[1]]
        placement = view.outstanding.get(key)
        if placement is None or seq not in (None, placement.seq):
            return
        view.resolve(key)
        self.live.remove(key)
        self.room.policy.given_back(key)
        self._outputs.append(
            PlacementsMade(worker=view.hello.worker, highest_seq=view.placed, abandoned=(placement.seq,))
        )

    def _drop_gateway(self, gateway: GatewayId) -> None:
        for request in self.room.of_gateway(gateway):
            self._leave(request)
        for worker in self.fleet.workers.values():
            for key in [key for key, placed in worker.outstanding.items() if placed.gateway == gateway]:
                self._give_back(key, None)

    def _drop_worker(self, worker: WorkerId, now: float, kept: Collection[RequestKey] = frozenset()) -> None:
        if worker in self.fleet.workers:
            self.fleet.remove(worker, now)
            self.live.worker_gone(worker)
            self.room.policy.worker_gone(worker, kept)

    def _leaves(self, worker: WorkerId, now: float) -> None:
        self.fleet.leave(worker, now)
        self._outputs.append(ModelsChanged(self.fleet.models()))


def _superseded(key: RequestKey) -> StaleAttempt:
    return StaleAttempt(f"attempt {key.attempt} of this request is known")
