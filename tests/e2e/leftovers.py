"""What requests have left behind in a stack: nothing, when all of them are over.

Reads gauges, status calls and Redis; judges nothing but zero and equal.
"""

import time

from redis.asyncio import Redis

from tests.e2e.stack import Stack


async def leftovers(stack: Stack) -> dict[str, float]:
    """Return everything that is not as it is at rest, by name.

    Raises:
        OSError: A process does not answer.
    """
    found = await _of_workers(stack)
    scheduler, gateway = await stack.metrics("scheduler"), await stack.metrics("gateway")
    queue = await stack.queue()
    found["scheduler waiting"] = scheduler.sum("quire_requests") + queue.waiting
    found["scheduler missing workers"] = stack.setup.num_workers - len(queue.workers)
    found["gateway live"] = gateway.sum("quire_requests")
    found["gateway unsettled"] = gateway.sum("quire_settlements_pending")
    async with stack.redis() as redis:
        found["live leases"] = await live_leases(redis)
        found["open reservations"] = await open_reservations(redis)
    return {name: value for name, value in found.items() if value}


async def _of_workers(stack: Stack) -> dict[str, float]:
    found: dict[str, float] = {}
    for status in await stack.workers():
        gauges = await stack.metrics(status.name)
        pages = {state: gauges.sum("quire_kv_pages", state=state) for state in ("free", "cached", "held")}
        found |= {
            f"{status.name} pages missing": status.total_pages - status.free_pages - status.cached_pages,
            f"{status.name} pages missing in gauges": status.total_pages - pages["free"] - pages["cached"],
            f"{status.name} held": status.held_pages + pages["held"],
            f"{status.name} running": status.running + gauges.sum("quire_requests", state="running"),
            f"{status.name} waiting": status.waiting + gauges.sum("quire_requests", state="waiting"),
            f"{status.name} sequences": gauges.sum("quire_sequences"),
        }
    return found


async def live_leases(redis: Redis) -> int:
    """Count leases of all tenants that have not run out."""
    now_ms = int(time.time() * 1000)
    keys = [key async for key in redis.scan_iter("quire:quota:*:leases", count=1000)]
    return sum([await redis.zcount(key, now_ms, "+inf") for key in keys])


async def open_reservations(redis: Redis) -> int:
    """Count reservations of all tenants that are not settled."""
    keys = [key async for key in redis.scan_iter("quire:quota:*:reservations", count=1000)]
    # An open one is a packed record, an ended one is a letter.
    return sum([len(state) > 1 for key in keys for state in await redis.hvals(key)])
