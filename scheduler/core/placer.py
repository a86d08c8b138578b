"""Decides placements: asks for matches, tries the heads in order, keeps a worker for a head passed too often.

Changes queue, fleet and live table through their own commands; time comes in. Knows no gateway connection.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import islice

from scheduler.core.admission import PlacementRate
from scheduler.core.classes import ClassLimits
from scheduler.core.credits import OUTSTANDING_GRACE_S, Placement, WorkerCredits
from scheduler.core.fault_watch import FaultWatch
from scheduler.core.fleet import Fleet
from scheduler.core.kept_seats import KeptSeats
from scheduler.core.live import LiveTable, Seated
from scheduler.core.outputs import AskMatch, Output, Placed, PlacementsMade
from scheduler.core.placement import (
    Choice,
    can_be_here,
    choose,
    held_back,
    miss_reason,
    price,
    worker_to_keep,
)
from scheduler.core.request import Match, WaitingRequest, WorkerBoot, uncacheable_match, unknown_match
from scheduler.core.rules import Rules
from scheduler.core.waiting_room import WaitingRoom
from scheduler.core.yielding import Yielders
from services.domain.block_hash import BLOCK_SIZE
from services.domain.capacity import pages_for
from services.domain.generation import RequestClass
from services.domain.ids import RequestKey
from services.domain.miss_reason import MissReason

Workers = list[WorkerCredits]
_KNOWS_NOTHING = (MissReason.NEVER_SEEN, MissReason.OWN_SALT)


class Placer:
    """Turns free credits into placements."""

    def __init__(
        self, rules: Rules, room: WaitingRoom, fleet: Fleet, live: LiveTable, faults: FaultWatch
    ) -> None:
        self._rules = rules
        self._room = room
        self._fleet = fleet
        self._live = live
        self._classes = ClassLimits(rules, live)
        self._faults = faults
        self._asked: dict[RequestKey, WaitingRequest] = {}
        self._windows: dict[str, float] = {}
        self._rates: defaultdict[str, PlacementRate] = defaultdict(PlacementRate)
        self._reported: set[WorkerBoot] = set()
        self._turn = 0
        self.matching = False
        """Whether there is a kvmanager to ask."""

    @property
    def num_placed(self) -> int:
        return self._turn

    def reported(self, worker: WorkerCredits) -> None:
        """A worker said how it stands: those on it are looked at, whether they have to yield."""
        self._reported.add(worker.boot)

    def open_window(self, model: str, now: float, *, is_held: bool) -> None:
        """A request came in: hold back its model for the batch wait; one not `is_held` ends that wait."""
        if not is_held:
            self._windows.pop(model, None)
        elif self._rules.batch_wait_s > 0:
            self._windows.setdefault(model, now + self._rules.batch_wait_s)

    def expected_wait_s(self, model: str, position: int, now: float) -> float | None:
        rate = self._rates.get(model)
        return None if rate is None else rate.expected_s(position, now)

    def settled(self, request: WaitingRequest) -> bool:
        """Say whether the request was looked at and has to wait for a worker, not for an answer."""
        return request.key not in self._asked and request.acquire.model not in self._windows

    def match_answered(self, request: WaitingRequest, match: Match) -> None:
        """Take in what the kvmanager said.

        Asked a second time it knows the prompt itself as an earlier one: its first reason is the better one.
        """
        self._asked.pop(request.key, None)
        before = request.match
        if (
            before is not None
            and before.first_miss_token == match.first_miss_token
            and before.miss_reason is MissReason.FIRST_DIFFERENCE
            and match.miss_reason in _KNOWS_NOTHING
        ):
            match = match._replace(miss_reason=before.miss_reason)
        request.matched(match)

    def forget(self, request: WaitingRequest) -> None:
        """The request left the queue unplaced."""
        self._asked.pop(request.key, None)

    def next_wake(self) -> float | None:
        """Return when time alone changes something here."""
        times = list(self._windows.values())  # Of those asked the first was asked first.
        if (first := next(iter(self._asked.values()), None)) is not None and first.match_asked is not None:
            times.append(first.match_asked + self._rules.match_within_s)
        return min(times, default=None)

    def place(self, now: float) -> list[Output]:
        """Place all that can be placed now."""
        outputs: list[Output] = []
        self._end_late_asks(now)
        self._live.in_flight.expire(now)
        self._windows = {model: ends for model, ends in self._windows.items() if ends > now}
        touched: dict[WorkerBoot, WorkerCredits] = {}
        for model in self._room.policy.models():
            if model in self._windows:
                continue
            workers = self._fleet.serving(model)
            free = [worker for worker in workers if worker.free_credits]
            while free:
                placed = self._place_next(model, workers, free, now, outputs)
                if placed is None:
                    break
                touched[placed.boot] = placed
                if not placed.free_credits:
                    free.remove(placed)
            for worker in workers if self._reported else ():
                # Where a seat has just become free nobody needs to yield one.
                is_asked = worker.boot in self._reported and worker.boot not in touched
                if is_asked and self._place_over(model, worker, workers, now, outputs):
                    touched[worker.boot] = worker
        self._reported.clear()
        outputs += [PlacementsMade(worker=w.hello.worker, highest_seq=w.placed) for w in touched.values()]
        return outputs

    def _place_next(
        self, model: str, workers: Workers, free: Workers, now: float, outputs: list[Output]
    ) -> WorkerCredits | None:
        """Place the first head that fits; return its worker, or None when nothing can be placed now.

        Args:
            workers: Those of the model.
            free: Those of them with credit, at least one.
        """
        passed: list[WaitingRequest] = []
        seats = KeptSeats(self._rules.max_over_share)
        kept: dict[WorkerBoot, RequestKey] = {}
        with_room = self._with_room(model, workers)
        closed = [
            kind
            for kind, some in with_room.items()
            if some is not workers and not any(w.free_credits for w in some)
        ]
        candidates = partial(self._room.policy.candidates, model, closed=closed, held=held_back(workers))
        for request in islice(candidates(), self._rules.window):
            if self._must_ask(request, now):
                outputs += self._ask(model, islice(candidates(), self._rules.window), now)
            if request.key in self._asked:
                return None
            possible = self._classes.for_request(request, with_room[request.acquire.request_class], workers)
            taken = self._faults.not_now(request, kept, now)
            with_seat = seats.open_to(request, free if possible is workers else possible)
            choice = choose(request, with_seat, taken, self._live.in_flight)
            if choice is not None:
                for head in passed:
                    head.bypassed += 1
                outputs.append(self._give(request, choice, now))
                return choice.worker
            passed.append(request)
            if request.bypassed >= self._rules.max_bypasses or self._room.policy.is_owed(request):
                request.kept_worker = worker_to_keep(request, seats.open_to(request, possible), taken)
                if request.kept_worker is not None:
                    kept[request.kept_worker] = request.key
        return None

    def _with_room(self, model: str, workers: Workers) -> dict[RequestClass, Workers]:
        if not self._room.has_long(model):
            return self._classes.with_room(workers, long_waits=False)
        return self._classes.with_room(workers, long_waits=True, owed=self._room.policy.owed_class(model))

    def _place_over(
        self, model: str, worker: WorkerCredits, workers: Workers, now: float, outputs: list[Output]
    ) -> bool:
        """Place the first that has waited for a grant and to whom others have to yield on `worker`."""
        if worker.free_credits or not worker.takes_beyond_grants or not worker.report.running:
            return False
        policy = self._room.policy
        yielders = Yielders(worker, self._live.seated(worker.hello.worker), policy)
        if not yielders.concern(model):
            return False
        with_room = self._with_room(model, workers)
        passed: list[WaitingRequest] = []
        for request in islice(policy.candidates(model), self._rules.window):
            kind = request.acquire.request_class
            choice = price(request, worker, self._live.in_flight)
            if (
                now - request.arrived >= self._rules.yield_after_s
                and yielders.make_room(choice, request.acquire)
                and worker in self._classes.for_request(request, with_room[kind], workers)
                and can_be_here(request, worker)
                and worker.boot not in self._faults.not_now(request, {}, now)
                and worker.has_window(choice.uncached_tokens, kind, choice.shared_tokens)
            ):
                for head in passed:
                    head.bypassed += 1
                outputs.append(self._give(request, choice, now, beyond_grants=True))
                return True
            passed.append(request)
        return False

    def _give(
        self, request: WaitingRequest, choice: Choice, now: float, *, beyond_grants: bool = False
    ) -> Placed:
        worker, acquire = choice.worker, request.acquire
        reason, first_miss = miss_reason(request, choice, self._live.in_flight.has)
        output = Placed(
            gateway=request.gateway,
            acquire=acquire,
            worker=worker.hello.worker,
            epoch=worker.hello.epoch,
            address=worker.hello.address,
            seq=worker.placed + 1,
            submit_within_s=self._rules.submit_within_s,
            cached_tokens=choice.cached_tokens,
            miss_reason=reason,
            first_miss_token=first_miss,
            waited_s=now - request.arrived,
        )
        placement = Placement(
            gateway=request.gateway,
            kind=acquire.request_class,
            seq=output.seq,
            cached_tokens=choice.cached_tokens + choice.shared_tokens,
            uncached_tokens=choice.uncached_tokens,
            num_pages=choice.num_pages,
            counts_until=now + self._rules.submit_within_s + OUTSTANDING_GRACE_S,
            beyond_grants=beyond_grants,
            output=output,
        )
        worker.place(acquire.key, placement)
        self._turn += 1
        worker.last_turn = self._turn
        computes = acquire.block_hashes[choice.cached_tokens // BLOCK_SIZE :]
        self._live.add(
            acquire.key,
            worker.hello.worker,
            computes,
            Seated(
                tenant=acquire.tenant,
                band=acquire.band,
                kind=acquire.request_class,
                num_seats=acquire.num_choices,
                num_pages=pages_for(acquire.num_prompt_tokens, worker.hello.capacity.page_size),
            ),
            acquire.prompt_digest,
        )
        self._faults.placed(worker, request, now)
        self._room.placed(request, worker.hello.worker, choice.cached_tokens)
        self._rates[acquire.model].placed(now)
        return output

    def settle_match(self, request: WaitingRequest, now: float) -> None:
        """Give a request that needs no question its match: then the policy need not hope for one."""
        if request.acquire.cache_opt_out or not request.acquire.block_hashes:
            request.matched(uncacheable_match(request.acquire, now))
        elif not self.matching:
            request.matched(unknown_match(now))

    def _ask(self, model: str, heads: Iterable[WaitingRequest], now: float) -> list[Output]:
        """Ask for all heads whose match is unknown or old, so that the answers come together."""
        stale = [request for request in heads if self._must_ask(request, now)]
        namespace = self._fleet.namespace(model)
        for request in stale:
            request.match_asked = now
            self._asked[request.key] = request
        return [AskMatch(acquire=request.acquire, namespace=namespace) for request in stale]

    def _must_ask(self, request: WaitingRequest, now: float) -> bool:
        match = request.match
        if match is not None and now - match.at <= self._rules.match_fresh_s:
            return False
        if request.key in self._asked or request.acquire.cache_opt_out or not request.acquire.block_hashes:
            return False
        if not self.matching:
            request.matched(unknown_match(now))
        return self.matching

    def _end_late_asks(self, now: float) -> None:
        while self._asked:
            key, request = next(iter(self._asked.items()))
            assert request.match_asked is not None
            if self.matching and now < request.match_asked + self._rules.match_within_s:
                return
            del self._asked[key]
            request.matched(unknown_match(now))
