"""The bare gRPC control of `bench.overhead`: the same messages with none of our logic around them.

Three processes: a producer that sends one message per step for all streams, a relay that splits it and
writes to each client's stream every 25 ms, and the caller's client. What they burn is the floor of this
shape on this machine, in this very run.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from protos.worker.v1 import worker_pb2, worker_pb2_grpc

COALESCE_S = 0.025
TEXT = " word"


class Producer(worker_pb2_grpc.WorkerServiceServicer):
    """One message per step, one token per stream in it, at a fixed rate."""

    def __init__(self, num_streams: int, step_s: float, num_steps: int) -> None:
        self._num_streams, self._step_s, self._num_steps = num_streams, step_s, num_steps

    async def Connect(
        self, request_iterator: AsyncIterator[worker_pb2.ConnectRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.ConnectResponse]:
        handles = list(range(self._num_streams))
        loop = asyncio.get_running_loop()
        start = loop.time()
        for step in range(self._num_steps):
            outputs = worker_pb2.StepOutputs(
                step=step,
                handles=handles,
                choices=[0] * self._num_streams,
                first_position=[step] * self._num_streams,
                counts=[1] * self._num_streams,
                token_ids=[1000 + step % 1000] * self._num_streams,
            )
            yield worker_pb2.ConnectResponse(position=step + 1, step=outputs)
            await asyncio.sleep(max(0.0, start + (step + 1) * self._step_s - loop.time()))


class Relay(gateway_pb2_grpc.GenerateServiceServicer):
    """Splits each step over the clients' streams and writes what has gathered every 25 ms."""

    def __init__(self, producer: str, num_streams: int) -> None:
        self._producer, self._num_streams = producer, num_streams
        self._pending = [0] * num_streams
        self._joined = 0
        self._all_joined = asyncio.Event()
        self._done = False

    async def pump(self) -> None:
        """Read the producer's steps once every stream has joined."""
        await self._all_joined.wait()

        async def hello() -> AsyncIterator[worker_pb2.ConnectRequest]:
            yield worker_pb2.ConnectRequest()

        async with grpc.aio.insecure_channel(self._producer) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
            async for message in stub.Connect(hello()):
                for handle, count in zip(message.step.handles, message.step.counts, strict=True):
                    self._pending[handle] += count
        self._done = True

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        handle = self._joined
        self._joined += 1
        if self._joined == self._num_streams:
            self._all_joined.set()
        while not (self._done and self._pending[handle] == 0):
            if count := self._pending[handle]:
                self._pending[handle] = 0
                yield gateway_pb2.GenerateResponse(delta=gateway_pb2.Delta(text=TEXT * count))
            await asyncio.sleep(COALESCE_S)


async def serve_producer(port: int, num_streams: int, step_s: float, num_steps: int) -> None:
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(Producer(num_streams, step_s, num_steps), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def serve_relay(port: int, producer_port: int, num_streams: int) -> None:
    server = grpc.aio.server()
    relay = Relay(f"127.0.0.1:{producer_port}", num_streams)
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(relay, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    async with asyncio.TaskGroup() as group:
        group.create_task(relay.pump(), name="pump")
        group.create_task(server.wait_for_termination(), name="serve")


def main() -> None:
    role, *numbers = sys.argv[1:]
    if role == "producer":
        port, num_streams, num_steps = map(int, numbers[:3])
        asyncio.run(serve_producer(port, num_streams, float(numbers[3]), num_steps))
    else:
        port, producer_port, num_streams = map(int, numbers)
        asyncio.run(serve_relay(port, producer_port, num_streams))


if __name__ == "__main__":
    main()
