"""Known failures of gateways: permits that leak, and settlements that the garbage collector takes."""

import asyncio
import gc
import random
import time
from collections.abc import Sequence

import grpc
import pytest

from gateway.core.limit_status import LimitStatus
from gateway.stores.quota import Batch, Reservation
from services.chassis.errors import from_rpc_error
from services.domain.errors import BadRow, InvalidField, QuotaExceeded
from services.domain.ids import RequestId
from tests.fakes.gateway_rig import (
    ACME,
    ACME_CONCURRENCY,
    ACME_KEY,
    Rig,
    a_request,
    account_of,
    failure_of,
    gateway_rig,
    generate,
    use_by,
)
from tests.fakes.quota_memory import MemoryQuota
from tests.fakes.quota_values import a_reservation
from tests.fakes.worker_server import endless, says

PERMITS = 8
HELD = ACME_CONCURRENCY - PERMITS
NUM_REQUESTS = 1000
FAULTY = 13
"""Output tokens of a request that the worker refuses."""


class NotingQuota(MemoryQuota):
    """Notes what it admitted and what of that is settled."""

    def __init__(self) -> None:
        super().__init__(time.time, lease_s=3600.0)
        self.open: set[RequestId] = set()

    async def reserve(self, reservation: Reservation) -> LimitStatus:
        status = await super().reserve(reservation)
        self.open.add(reservation.id)
        return status

    async def settle_batch(self, batch: Batch) -> None:
        await super().settle_batch(batch)
        self.open -= {one.id for one in batch.settlements}


async def one_of_any_kind(rig: Rig, draw: random.Random) -> None:
    """Make a request that ends in one of five ways.

    Raises:
        AioRpcError: There was no permit.
    """
    kind = draw.randrange(5)
    if kind == 0:
        assert (await generate(rig, metadata=ACME_KEY)).text() == "ok"
    elif kind == 1:
        assert type(await failure_of(rig, n=99, metadata=ACME_KEY)) is InvalidField
    elif kind == 2:
        error = await failure_of(rig, max_output_tokens=FAULTY, metadata=ACME_KEY)
        assert type(error) in (BadRow, QuotaExceeded)
    else:
        call = rig.stub.Generate(a_request(n=draw.randrange(1, 3)), metadata=ACME_KEY)
        if kind == 3:
            await call.read()
        for _ in range(draw.randrange(60)):
            await asyncio.sleep(0)  # Wherever it is by then: not sent, being admitted, placed, running.
        call.cancel()


async def callers(rig: Rig, seed: int, num_requests: int) -> None:
    draw = random.Random(seed)
    for _ in range(num_requests):
        try:
            await one_of_any_kind(rig, draw)
        except grpc.aio.AioRpcError as error:
            if type(from_rpc_error(error)) is not QuotaExceeded:
                raise
            await rig.settled()  # Those that were left behind may still hold all of them.


async def collect() -> None:
    gc.freeze()  # Only what begins from here on can be lost: the rest need not be looked through.
    try:
        while True:
            gc.collect()
            await asyncio.sleep(0.005)
    finally:
        gc.unfreeze()


async def begun(rig: Rig, num_calls: int) -> Sequence[grpc.aio.UnaryStreamCall]:
    """Return so many calls that run."""
    calls = [
        rig.stub.Generate(a_request(max_output_tokens=2000), metadata=ACME_KEY) for _ in range(num_calls)
    ]
    for call in calls:
        await call.read()
    return calls


@pytest.mark.failure("B011", "B144")
async def test_after_a_thousand_requests_of_every_end_all_are_settled_and_eight_permits_are_there() -> None:
    quota = NotingQuota()
    async with gateway_rig(quota=quota) as rig:
        await MemoryQuota.reserve(quota, a_reservation(account_of(ACME), "held", n=HELD))
        rig.worker.refuses, rig.worker.step_s = BadRow("a row of the step is not finite"), 0.001
        rig.worker.refuses_only = lambda submit: submit.max_output_tokens == FAULTY
        rig.worker.script = says("ok")
        collecting = asyncio.create_task(collect())
        async with asyncio.TaskGroup() as group:
            for seed in range(PERMITS):
                group.create_task(callers(rig, seed, NUM_REQUESTS // PERMITS))
        collecting.cancel()
        await rig.settled()
        assert quota.open == set()
        assert (await use_by(quota, ACME)).num_leases == HELD
        rig.worker.script, rig.worker.step_s = endless, 0.025
        calls = await begun(rig, PERMITS)
        assert type(await failure_of(rig, metadata=ACME_KEY)) is QuotaExceeded
        for call in calls:
            call.cancel()
        await rig.settled()
