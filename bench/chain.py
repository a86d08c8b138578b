"""The bare gRPC control of `bench.overhead`'s first tokens: a request's messages with no logic behind them.

Four processes linked as ours are, gateway to scheduler to kvmanager and gateway to worker, by one long-lived
stream each. A call goes client, gateway, scheduler, kvmanager, scheduler, gateway, worker, gateway, client:
seven messages of a few bytes until its first answer, and one more on each of the last two ways 25 ms later,
where ours would be coalesced tokens. No Redis, no tokeniser, no tokens: what this takes, no suite of these
processes can go below on this machine.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator

import grpc

COALESCE_S = 0.025
LINK = "/bench.Chain/Link"
GENERATE = "/bench.Chain/Generate"


class Link:
    """Asks the process behind it over one stream; answers are told apart by the id they begin with."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._asks: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: dict[bytes, asyncio.Queue[bytes]] = {}

    async def run(self) -> None:
        async def asks() -> AsyncIterator[bytes]:
            while True:
                yield await self._asks.get()

        async with grpc.aio.insecure_channel(self._target) as channel:
            await channel.channel_ready()
            async for answer in channel.stream_stream(LINK)(asks()):
                self._waiting[answer].put_nowait(answer)

    async def ask(self, key: bytes, num_answers: int) -> AsyncIterator[bytes]:
        answers = self._waiting[key] = asyncio.Queue()
        self._asks.put_nowait(key)
        for _ in range(num_answers):
            yield await answers.get()
        del self._waiting[key]


class Hop:
    """Answers what it hears, after asking the process behind it if there is one."""

    def __init__(self, behind: Link | None, num_answers: int) -> None:
        self._behind, self._num_answers = behind, num_answers

    async def link(
        self, asks: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(key: bytes) -> None:
            if self._behind is not None:
                async for _ in self._behind.ask(key, 1):
                    pass
            answers.put_nowait(key)
            for _ in range(self._num_answers - 1):
                await asyncio.sleep(COALESCE_S)
                answers.put_nowait(key)

        async def read() -> None:
            async with asyncio.TaskGroup() as group:
                async for key in asks:
                    group.create_task(answer(key))

        reader = asyncio.create_task(read())
        try:
            while True:
                yield await answers.get()
        finally:
            reader.cancel()


class Gateway:
    """Has each call placed, then passes on the two answers of the worker."""

    def __init__(self, scheduler: Link, worker: Link) -> None:
        self._scheduler, self._worker = scheduler, worker
        self._numbers = itertools.count()

    async def generate(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        key = next(self._numbers).to_bytes(8)
        async for _ in self._scheduler.ask(key, 1):
            pass
        async for answer in self._worker.ask(key, 2):
            yield answer


async def serve(role: str, port: int, behind: list[int]) -> None:
    links = [Link(f"127.0.0.1:{one}") for one in behind]
    if role == "gateway":
        gateway = Gateway(*links)
        method = {"Generate": grpc.unary_stream_rpc_method_handler(gateway.generate)}
    else:
        hop = Hop(links[0] if links else None, num_answers=2 if role == "worker" else 1)
        method = {"Link": grpc.stream_stream_rpc_method_handler(hop.link)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Chain", method),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    async with asyncio.TaskGroup() as group:
        for link in links:
            group.create_task(link.run(), name="link")
        group.create_task(server.wait_for_termination(), name="serve")


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
