"""All workers that a gateway speaks to, each by one link to its present boot.

Makes a link for a worker's first request, and a new one when a placement names a newer boot. Knows nothing of
what goes over a link (`services.rpc.gateway_worker_link`), nor which worker should take a request.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from services.chassis.tls import Tls, open_channel
from services.domain.errors import StaleAttempt
from services.domain.ids import Epoch, WorkerId
from services.rpc import convert
from services.rpc.gateway_values import Placement, Submission, TokenSink
from services.rpc.gateway_worker_link import Attachment, WorkerLink


class Spawn(Protocol):
    """Runs a background task under supervision, e.g. `Lifecycle.spawn`."""

    def __call__(self, work: Coroutine[Any, Any, None], *, name: str) -> object: ...


class WorkerLinks:
    """All workers that this gateway speaks to, one channel each, so that no stream is pinned elsewhere."""

    def __init__(
        self,
        *,
        name: str,
        epoch: Callable[[], Epoch],
        build: str,
        spawn: Spawn,
        tls: Tls | None = None,
    ) -> None:
        self._make_peer = lambda: convert.peer_to_pb(name, epoch(), build)
        self._spawn = spawn
        self._tls = tls
        self._links: dict[WorkerId, WorkerLink] = {}

    @property
    def num_live(self) -> int:
        """Requests on all workers."""
        return sum(link.num_live for link in self._links.values())

    def submit(self, placement: Placement, submission: Submission, sink: TokenSink) -> Attachment:
        """Give a placed request to its worker.

        Raises:
            StaleAttempt: The placement names an older boot than the one that serves now.
        """
        link = self._links.get(placement.worker)
        if link is not None and not link.is_dead and placement.epoch < link.epoch:
            raise StaleAttempt(f"worker {placement.worker} has restarted since")
        if link is None or link.is_dead or placement.epoch > link.epoch:
            if link is not None:
                link.close()
            channel = open_channel(self._tls, placement.address, "worker")
            link = WorkerLink(channel, placement.worker, placement.epoch, self._make_peer)
            self._links[placement.worker] = link
            self._spawn(self._run(link), name=f"worker-link-{placement.worker}")
        return link.submit(placement, submission, sink)

    async def _run(self, link: WorkerLink) -> None:
        try:
            await link.run()
        finally:
            if self._links.get(link.worker) is link:
                del self._links[link.worker]
