"""A manager in virtual time and the links of its workers."""

from collections.abc import Mapping

from kvmanager.core.eviction_policy import EvictionPolicy
from kvmanager.core.prefix_index import WorkerKey
from kvmanager.manager import Manager
from kvmanager.messages import Answer, CacheChange, Query, SnapshotPart
from kvmanager.metrics import IndexMetrics
from services.chassis.metrics import Metrics
from services.domain.ids import BlockHash, Epoch, Namespace, TenantId, WorkerId
from services.domain.slices import NO_SLICES, SliceInForce, SlicesInForce
from tests.fakes.index_copy_memory import MemoryIndexCopy

T = TenantId("t")
W0, W1 = WorkerId("worker-0"), WorkerId("worker-1")
TICK_S = 0.5


class FakeLink:
    """Keeps what was pushed to a worker."""

    def __init__(self) -> None:
        self.slices: list[Mapping[TenantId, int]] = []
        self.policies: list[EvictionPolicy] = []
        self.version = 0
        self.num_asked = 0
        self.closed = False

    def push_slices(
        self, version: int, max_pages: Mapping[TenantId, int], caps: Mapping[TenantId, int]
    ) -> None:
        self.slices.append(max_pages)
        self.version = version

    def push_policy(self, policy: EvictionPolicy) -> None:
        self.policies.append(policy)

    def ask_snapshot(self) -> None:
        self.num_asked += 1

    def close(self) -> None:
        self.closed = True


class Fleet:
    """A manager, its clock and its metrics."""

    def __init__(
        self, caps: Mapping[TenantId, int] | None = None, copy: MemoryIndexCopy | None = None
    ) -> None:
        self.metrics = Metrics()
        self.manager = Manager(
            caps=caps or {},
            policy=EvictionPolicy(),
            metrics=IndexMetrics(self.metrics),
            copy=copy,
            expect_workers=2,
        )
        self.now = 100.0

    def connect(
        self,
        worker: WorkerId = W0,
        epoch: int = 1,
        namespace: str = "n",
        said: SlicesInForce = NO_SLICES,
    ) -> FakeLink:
        link = FakeLink()
        key = WorkerKey(worker, Epoch(epoch), Namespace(namespace))
        self.manager.connect(key, 1000, said, link, self.now)
        return link

    def applied(
        self, link: FakeLink, worker: WorkerId = W0, *, bound: int = 0, held: int = 0, needs: int = 0
    ) -> None:
        """The worker says that it keeps to what was pushed last."""
        pages = link.slices[-1][T]
        one = SliceInForce(max_pages=pages, bound=max(pages, bound), held=held, needs=needs)
        said = SlicesInForce(version=link.version, tenants={T: one})
        self.manager.on_slices(worker, link, said, self.now)

    def snapshot(self, link: FakeLink, *blocks: BlockHash, seq: int = 0, worker: WorkerId = W0) -> None:
        part = SnapshotPart(seq=seq, blocks=blocks, first=True, more=False)
        self.manager.on_snapshot(worker, link, part, self.now)

    def change(self, link: FakeLink, seq: int, *, worker: WorkerId = W0, **changes: object) -> None:
        change = CacheChange(seq=seq, **{"tenant_pages": {}, **changes})  # type: ignore[arg-type]
        self.manager.on_change(worker, link, change, self.now)

    def ask(self, *hashes: BlockHash, tenant: TenantId = T) -> Answer:
        return self.manager.lookup.match(Query(hashes=hashes, tenant=tenant))

    def pass_time(self, seconds: float, *alive: tuple[WorkerId, FakeLink]) -> None:
        """Let time pass, with a tick each half second and a heartbeat of who is alive."""
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            for worker, link in alive:
                self.manager.on_heartbeat(worker, link, self.now)
            self.manager.tick(self.now)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)
