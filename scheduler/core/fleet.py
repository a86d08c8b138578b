"""The workers that are there, those that may come back, and what they can serve.

Knows workers by model; knows nothing of what waits.
"""

from collections.abc import Callable, Collection, Mapping

from scheduler.core.credits import WorkerCredits, WorkerHello
from scheduler.core.outputs import ModelState
from scheduler.core.request import WorkerBoot
from services.domain.capacity import Capacity
from services.domain.degradation import Step
from services.domain.generation import Band
from services.domain.ids import Epoch, Namespace, WorkerId

_NO_BOOTS: frozenset[WorkerBoot] = frozenset()


class Fleet:
    """All workers of this term.

    Args:
        grace_s: A worker that left may come back within this time.
        steps: Says how far the bands of a model have degraded.
        batch_wait_s: How long arrivals of bands that have not degraded are gathered.
    """

    def __init__(
        self, grace_s: float, steps: Callable[[str], Mapping[Band, Step]], batch_wait_s: float = 0.0
    ) -> None:
        self._grace_s = grace_s
        self._batch_wait_s = batch_wait_s
        self._steps = steps
        self.workers: dict[WorkerId, WorkerCredits] = {}
        self._hellos: dict[str, dict[WorkerId, WorkerHello]] = {}
        """By model: the workers that take requests, and those that left and may come back."""
        self._capacities: dict[str, list[Capacity]] = {}
        """Derived from the hellos when asked for; emptied when they change."""
        self._serving: dict[str, list[WorkerCredits]] = {}
        """As `_capacities`: also when a worker leaves."""
        self._leaving: dict[WorkerId, tuple[float, str]] = {}
        """Workers that take nothing more: when they are forgotten, and their model."""
        self._models_seen: set[str] = set()

    def connect(self, hello: WorkerHello, now: float) -> WorkerCredits:
        """Take in a new boot or connection of a worker."""
        for hellos in self._hellos.values():
            hellos.pop(hello.worker, None)
        self._hellos = {model: hellos for model, hellos in self._hellos.items() if hellos}
        self._leaving.pop(hello.worker, None)
        self._capacities.clear()
        self._serving.clear()
        worker = self.workers[hello.worker] = WorkerCredits(hello, now)
        self._hellos.setdefault(hello.model, {})[hello.worker] = hello
        self._models_seen.add(hello.model)
        if hello.draining:
            self.leave(hello.worker, now)
        return worker

    def leave(self, worker: WorkerId, now: float) -> None:
        """The worker takes nothing more: it drains or is gone. It may come back within the grace time."""
        model = self.workers[worker].hello.model
        self._serving.clear()
        if worker in self._hellos.get(model, {}):
            self._leaving.setdefault(worker, (now + self._grace_s, model))

    def remove(self, worker: WorkerId, now: float) -> None:
        """The worker is gone."""
        self.leave(worker, now)
        del self.workers[worker]

    def forget(self, now: float) -> list[str]:
        """Forget workers whose time to come back is over; return the models that lost one."""
        changed: list[str] = []
        if not self._leaving:
            return changed
        for worker, (until, model) in list(self._leaving.items()):
            if until > now:
                continue
            del self._leaving[worker]
            self._capacities.clear()
            self._serving.clear()
            del self._hellos[model][worker]
            if not self._hellos[model]:
                del self._hellos[model]
            changed.append(model)
        return changed

    def next_forget(self) -> float | None:
        """Return when `forget` has something to do."""
        return min((until for until, _ in self._leaving.values()), default=None)

    def serving(self, model: str) -> list[WorkerCredits]:
        """Return the workers of `model` that take requests."""
        known = self._serving.get(model)
        if known is None:
            names = self._hellos.get(model, ())
            known = [self.workers[name] for name in names if name not in self._leaving]
            if known:
                self._serving[model] = known
        return known

    def boots(self, named: Collection[tuple[WorkerId, Epoch | None]]) -> frozenset[WorkerBoot]:
        """Return those of `named` that are here; without an epoch it is the boot of now."""
        if not named:
            return _NO_BOOTS
        here = ((self.workers[name], epoch) for name, epoch in named if name in self.workers)
        return frozenset(view.boot for view, epoch in here if epoch in (None, view.hello.epoch))

    def capacities(self, model: str) -> list[Capacity]:
        """Return the kinds of worker `model` has, those that may come back included."""
        kinds = self._capacities.get(model)
        if kinds is None:
            kinds = list({hello.capacity for hello in self._hellos.get(model, {}).values()})
            if kinds:
                self._capacities[model] = kinds
        return kinds

    def held(self, model: str) -> float:
        """Return the part of the KV pages of `model` that is held, 0 to 1."""
        workers = [worker for worker in self.serving(model) if worker.report.seq]  # Before, nothing is known.
        total = sum(worker.hello.capacity.total_pages for worker in workers)
        free = sum(worker.report.free_pages + worker.report.reclaimable_pages for worker in workers)
        return 1 - free / total if total else 0.0

    def may_return(self, model: str) -> bool:
        """Say whether a worker that left may still come back."""
        return any(left == model for _, left in self._leaving.values())

    def ever_served(self, model: str) -> bool:
        return model in self._models_seen

    def namespace(self, model: str) -> Namespace | None:
        """Return the KV namespace of `model`, or None when its workers do not share one."""
        spaces = {hello.namespace for hello in self._hellos.get(model, {}).values()}
        return next(iter(spaces)) if len(spaces) == 1 else None

    def models(self) -> tuple[ModelState, ...]:
        """Return what can be called, by name."""
        states = []
        for model, by_name in sorted(self._hellos.items()):
            hellos = list(by_name.values())
            largest = max(hellos, key=lambda hello: hello.capacity.total_pages * hello.capacity.page_size)
            states.append(
                ModelState(
                    name=model,
                    revision=largest.revision,
                    max_context_tokens=max(hello.capacity.max_context_tokens for hello in hellos),
                    num_workers=sum(name not in self._leaving for name in by_name),
                    max_pages=largest.capacity.total_pages,
                    page_size=largest.capacity.page_size,
                    max_sequences=max(hello.capacity.max_sequences for hello in hellos),
                    steps=self._steps(model),
                    batch_wait_s=self._batch_wait_s,
                )
            )
        return tuple(states)
