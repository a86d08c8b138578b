"""What follows from workers' faults: breakers by worker, blame by prompt, and suspects kept apart.

The one place that turns ends, deaths, stalls and further attempts into outcomes of `Breaker` and
`Quarantine`, and that says where a request may not go for them. Changes no queue and sends nothing.
"""

from collections.abc import Collection, Iterable
from itertools import chain

from scheduler.core.breaker import Breaker, State
from scheduler.core.credits import Report, WorkerCredits, WorkerHello
from scheduler.core.fleet import Fleet
from scheduler.core.live import LiveTable
from scheduler.core.quarantine import NUM_WORKERS, Quarantine
from scheduler.core.request import WaitingRequest, WorkerBoot
from scheduler.core.rules import Rules
from services.domain.errors import Code, ErrorDetail, PromptQuarantined, ServeError
from services.domain.ids import Epoch, RequestId, RequestKey, WorkerId

MAX_WORKERS = 1024
"""Names of workers that are remembered after they left."""

MAX_LEFT_FOR = 1024
"""Prompts of a boot that lives on although it failed them; more are not blamed when it dies."""


class FaultWatch:
    """Breakers and quarantine of one term."""

    def __init__(self, rules: Rules, fleet: Fleet, live: LiveTable) -> None:
        self._rules = rules.breaker
        self._fleet = fleet
        self._live = live
        self.quarantine = Quarantine(rules.quarantine_s)
        self.breakers: dict[WorkerId, Breaker] = {}
        self._not_closed: set[WorkerId] = set()
        self._gone: dict[WorkerId, tuple[Epoch, dict[RequestId, bytes]]] = {}
        """Boots that left without being told to, and the prompts that were there: they may come back."""
        self._left_for: dict[WorkerBoot, dict[bytes, bool]] = {}
        """Prompts that are tried elsewhere after a boot that is still here; it may be about to die. And
        whether they were kept apart there."""
        self._apart: dict[WorkerBoot, tuple[RequestKey, bytes]] = {}
        """The last suspect placed on a boot."""

    # What happens

    def arrived(self, request: WaitingRequest, now: float) -> ServeError | None:
        """A request asks for a place, perhaps after other workers failed it; say whether it is refused."""
        acquire = request.acquire
        key, digest = acquire.key, acquire.prompt_digest
        for worker, epoch in request.avoid:
            if not self._fleet.workers[worker].draining:
                left_for = self._left_for.setdefault((worker, epoch), {})
                if len(left_for) < MAX_LEFT_FOR:
                    _, apart = self._apart.get((worker, epoch), (None, b""))
                    left_for[digest] = left_for.get(digest, False) or apart == digest
                self._of(worker).failed(RequestKey(key.request_id, key.attempt - 1), digest, now)
                self._show(worker)
        return None if self.quarantine.is_empty else self._refusal(digest, now)

    def placed(self, worker: WorkerCredits, request: WaitingRequest, now: float) -> None:
        """A request was placed."""
        name = worker.hello.worker
        if name in self._not_closed:
            self._of(name).placed(request.key)
            self._show(name)
        if not self.quarantine.is_empty and self.quarantine.is_suspect(request.acquire.prompt_digest, now):
            self._apart[worker.boot] = request.key, request.acquire.prompt_digest

    def reported(self, worker: WorkerId, report: Report, now: float) -> None:
        """A worker said what has ended, and whether it is stuck. To be called while that is still live."""
        if not (report.ended or report.stuck_s or worker in self._not_closed):
            return
        breaker = self._of(worker)
        for key in report.ended:
            digest = self._live.digest(key)
            code = report.failures.get(key, 0)
            if code == 0:
                breaker.ended_well(key, now)
                if digest:
                    self.quarantine.served(digest)
            elif code == Code.INTERNAL.value:
                breaker.failed(key, digest, now)
            else:
                breaker.ended(now)
        breaker.stuck(report.stuck_s, now)
        self._show(worker)

    def connected(self, hello: WorkerHello, now: float) -> tuple[dict[RequestId, bytes], list[bytes]]:
        """A worker says hello, before its former boot is dropped.

        Returns:
            The prompts of what the same boot ran when it was here last, and those that are quarantined
            because another one was.
        """
        former = self._fleet.workers.get(hello.worker)
        quarantined = [] if former is None else self.gone(former, now)
        epoch, prompts = self._gone.pop(hello.worker, (None, {}))
        if epoch == hello.epoch:
            self._of(hello.worker).lives()
            self.quarantine.lives((hello.worker, hello.epoch))
            quarantined = []
        return (prompts if epoch == hello.epoch else {}), quarantined

    def gone(self, worker: WorkerCredits, now: float) -> list[bytes]:
        """A worker's stream broke; return the prompts quarantined by it. To be called while they are live."""
        name, boot = worker.boot
        left_for = self._left_for.pop(worker.boot, {})
        suspect = self._apart.pop(worker.boot, None)
        if worker.draining:
            # It was told to leave: whoever comes back under its name begins anew.
            self.breakers.pop(name, None)
            self._not_closed.discard(name)
            return []
        prompts = self._live.digests_on(name)
        self._gone.pop(name, None)
        self._gone[name] = boot, prompts
        self._of(name).died(now)
        self._show(name)
        self._forget()
        digests = dict.fromkeys(chain(prompts.values(), left_for))
        apart = {digest for digest, was_apart in left_for.items() if was_apart}
        if suspect is not None and self._is_on(suspect[0], name):
            apart.add(suspect[1])
        return self.quarantine.died(worker.boot, digests, now, apart=apart)

    def tick(self, now: float) -> None:
        """Let requests try the workers whose time is up; do so before placing."""
        for name in list(self._not_closed):
            breaker = self.breakers[name]
            breaker.tick(now)
            if breaker.probe is not None and not self._is_on(breaker.probe, name):
                breaker.released()
            self._show(name)

    # What follows

    def not_now(
        self, request: WaitingRequest, kept: Collection[WorkerBoot], now: float
    ) -> Collection[WorkerBoot]:
        """Return the boots a request may not go to now: `kept`, and for a suspect those that have one."""
        if self.quarantine.is_empty or not self.quarantine.is_suspect(request.acquire.prompt_digest, now):
            return kept
        for boot, (key, digest) in list(self._apart.items()):
            if not self._is_on(key, boot[0]) or not self.quarantine.is_suspect(digest, now):
                del self._apart[boot]
        return {*kept, *self._apart}

    def refused(
        self, waiting: Iterable[WaitingRequest], now: float
    ) -> list[tuple[WaitingRequest, ServeError]]:
        """Return those of `waiting` whose prompts are kept from workers now."""
        refused = [(request, self._refusal(request.acquire.prompt_digest, now)) for request in waiting]
        return [(request, error) for request, error in refused if error is not None]

    def next_wake(self) -> float | None:
        """Return when `tick` has something to do."""
        times = [self.breakers[name] for name in self._not_closed]
        return min((one.until for one in times if one.state is State.OPEN), default=None)

    # Inside

    def _refusal(self, digest: bytes, now: float) -> ServeError | None:
        held = self.quarantine.find(digest, now)
        if held is None:
            return None
        left_s = held.until - now
        error = PromptQuarantined(
            "prompt", f"{held.num_workers} workers died with this prompt; it is not served for {left_s:.0f} s"
        )
        numbers = {"digest": digest.hex(), "workers": str(held.num_workers), "limit": str(NUM_WORKERS)}
        error.detail = ErrorDetail(field="prompt", retry_after_s=left_s, metadata=numbers)
        return error

    def _of(self, worker: WorkerId) -> Breaker:
        breaker = self.breakers.get(worker)
        if breaker is None:
            breaker = self.breakers[worker] = Breaker(self._rules)
        return breaker

    def _show(self, worker: WorkerId) -> None:
        """Make what is placed agree with the worker's breaker."""
        breaker = self.breakers[worker]
        if breaker.state is State.CLOSED:
            self._not_closed.discard(worker)
        else:
            self._not_closed.add(worker)
        view = self._fleet.workers.get(worker)
        if view is not None:
            view.tripped = not breaker.lets_through

    def show(self, worker: WorkerId) -> None:
        """A new boot is here; its breaker is that of its name."""
        if worker in self.breakers:
            self._show(worker)

    def _is_on(self, key: RequestKey, worker: WorkerId) -> bool:
        return self._live.get(key.request_id) == (key.attempt, worker)

    def _forget(self) -> None:
        for name in list(self.breakers):
            if len(self.breakers) <= MAX_WORKERS:
                break
            if name not in self._fleet.workers:
                del self.breakers[name]
                self._not_closed.discard(name)
                self._gone.pop(name, None)
