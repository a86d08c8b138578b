"""Tell the scheduler what an operator wants of the fleet.

Knows one call each; what follows from it is the scheduler's business.
"""

import grpc

from protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.chassis.errors import from_rpc_error
from services.chassis.tls import Tls, open_channel

LIMIT_S = 5.0


async def drain_worker(scheduler: str, worker: str, tls: Tls | None = None) -> int:
    """Let a worker take nothing new; return how many requests it still runs.

    Raises:
        ServeError: The scheduler does not answer, or knows no such worker.
    """
    async with open_channel(tls, scheduler, "scheduler") as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = await stub.DrainWorker(scheduler_pb2.DrainWorkerRequest(worker=worker), timeout=LIMIT_S)
        except grpc.aio.AioRpcError as exc:
            raise from_rpc_error(exc) from exc
    return int(answer.live)


async def release_quarantine(scheduler: str, digest: bytes, tls: Tls | None = None) -> int:
    """Serve a quarantined prompt again, or all of them (empty); return how many were kept.

    Raises:
        ServeError: The scheduler does not answer, or keeps no such prompt.
    """
    async with open_channel(tls, scheduler, "scheduler") as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        request = scheduler_pb2.ReleaseQuarantineRequest(digest=digest)
        try:
            answer = await stub.ReleaseQuarantine(request, timeout=LIMIT_S)
        except grpc.aio.AioRpcError as exc:
            raise from_rpc_error(exc) from exc
    return int(answer.num_released)
