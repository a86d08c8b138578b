"""How soon the suite is itself again after a death, and how soon it refuses: `python -m bench.deaths`.

Each process is killed with -9 under load, and the launcher starts it again. From the kill on: gateway, until
no page of its requests is held; worker, until a new request has its whole answer; scheduler, with 200 and
more waiting, until all have theirs, each once. Before that, calls with a bad field are refused over both
doors, of which the slowest counts. With `--native` the worker computes the real model and has longer.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx

from bench.suite import PORT_OFFSET, Noise, RunningSuite, suite
from bench.verdict import Row, verdict
from services.client import AsyncClient
from services.domain.errors import InvalidField, ServeError
from services.launcher.ports import Ports
from services.rpc.fleet_status import queue_status, worker_statuses

MODEL = "smollm2-135m-instruct"
PORTS = Ports(PORT_OFFSET)
WORKER = f"127.0.0.1:{PORTS.worker(0)}"
REFUSALS = 50
STREAMS = 12
CROWD = 320
CROWD_TOKENS = 60
"""So long that none of the first are done while the rest of the crowd still arrives on a slow machine."""
LEAST_WAITING = 200
LOOK_S = 0.01
LIMIT_S = 180.0
"""Whatever takes longer has failed."""
SIM_CONFIG = """
[worker]
sim_step_ms = 20.0
sim_prefill_tokens_per_s = 20000.0
"""
NATIVE_CONFIG = """
[worker]
executor = "native"
"""


async def refusals(client: AsyncClient, web: httpx.AsyncClient) -> list[Row]:
    """Send bad fields over both doors."""

    async def over_grpc() -> None:
        try:
            await client.generate_text("x", n=99)
        except InvalidField:
            return
        raise AssertionError("a bad field was accepted")

    async def over_http() -> None:
        answer = await web.post("/v1/completions", json={"model": MODEL, "prompt": "x", "temperature": 9})
        assert answer.status_code == 400, answer.text

    rows = []
    for name, call in (("gRPC", over_grpc), ("HTTP", over_http)):
        await call()  # The first one connects.
        slowest_s = max([await _seconds(call) for _ in range(REFUSALS)])
        what = f"bad field over {name}, slowest of {REFUSALS}"
        rows.append(Row(what=what, asked=100, got=slowest_s * 1000, unit="ms"))
    return rows


async def gateway_death(running: RunningSuite, client: AsyncClient) -> Row:
    """Kill it under running streams; its worker notices."""
    streams = [
        client.generate([9 + n] * 100, max_output_tokens=2000, ignore_eos=True) for n in range(STREAMS)
    ]
    for stream in streams:
        async for _ in stream.text():
            break
    running.named()["gateway"].kill()
    took_s = await _seconds(lambda: _until(_nothing_is_held))
    for stream in streams:
        stream.cancel()
    await _until(lambda: _answers(client))
    return Row(what="gateway killed: its pages are free", asked=4, got=took_s, unit="s")


async def worker_death(running: RunningSuite, client: AsyncClient, asked_s: float) -> Row:
    """Kill the only one; ask until there is a whole answer again."""
    running.named()["worker-0"].kill()
    took_s = await _seconds(lambda: _until(lambda: _answers(client)))
    return Row(what="worker killed: serving again", asked=asked_s, got=took_s, unit="s")


async def scheduler_death(running: RunningSuite, client: AsyncClient) -> Row:
    """Kill it while a crowd waits; all of the crowd has to be answered, each once."""
    crowd = [asyncio.create_task(_one_of_the_crowd(client, number)) for number in range(CROWD)]
    await _until(_many_wait)
    running.named()["scheduler"].kill()
    began = time.monotonic()
    ids = await asyncio.gather(*crowd)
    print(f"the last of {CROWD} was answered {time.monotonic() - began:.1f} s after the scheduler's death")
    answered = len({one for one in ids if one is not None})
    what = f"scheduler killed, {LEAST_WAITING} and more waiting: answered"
    return Row(what=what, asked=CROWD, got=answered, unit="answers")


async def _one_of_the_crowd(client: AsyncClient, number: int) -> str | None:
    """Return the id of the answered request."""
    try:
        whole = await client.generate_text([number + 1] * 30, max_output_tokens=CROWD_TOKENS, ignore_eos=True)
    except ServeError as error:
        print(f"request {number}: {error.reason}: {error.message}")
        return None
    return whole.receipt.request_id


async def _answers(client: AsyncClient) -> bool:
    try:
        whole = await client.generate_text([7] * 30, max_output_tokens=4, ignore_eos=True)
    except ServeError:
        return False
    return whole.receipt.usage.output_tokens == 4


async def _nothing_is_held() -> bool:
    (worker,) = await worker_statuses([WORKER])
    return worker is not None and worker.held_pages == 0


async def _many_wait() -> bool:
    queue = await queue_status(f"127.0.0.1:{PORTS.scheduler}")
    return queue is not None and queue.waiting >= LEAST_WAITING


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await holds():  # noqa: ASYNC110 (the state of another process)
            await asyncio.sleep(LOOK_S)


async def _seconds(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    await call()
    return time.monotonic() - began


async def measure(running: RunningSuite, *, is_native: bool) -> list[Row]:
    """Bring all of it about, one after the other."""
    base = f"http://127.0.0.1:{PORTS.http}"
    async with (
        AsyncClient(running.gateway, model=MODEL, timeout_s=LIMIT_S) as client,
        httpx.AsyncClient(base_url=base, timeout=LIMIT_S) as web,
    ):
        rows = await refusals(client, web)
        rows.append(await gateway_death(running, client))
        rows.append(await worker_death(running, client, 15 if is_native else 5))
        rows.append(await scheduler_death(running, client))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--native", action="store_true", help="a worker that computes the real model")
    args = parser.parse_args(argv)
    flags = ("--model", MODEL, *(() if args.native else ("--sim",)))
    with suite(*flags, config=NATIVE_CONFIG if args.native else SIM_CONFIG) as running:
        noise = Noise()
        rows = asyncio.run(measure(running, is_native=args.native))
        busy = noise.foreign_share(0.0)
    code = verdict(rows)
    print(f"the machine was busy by {busy:.0%} of its cores, this suite included")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
