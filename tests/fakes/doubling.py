"""The smallest thing that computes on a device: numbers in, a launch, numbers out. For tests of streams."""

import torch

from worker.executors.triton_memory import Field, PackedMemory
from worker.executors.triton_stream import Stream


class Doubling:
    """Doubles numbers on a device."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.memory = PackedMemory(
            stream, (Field("x", torch.int32, (4,)), Field("y", torch.int32, (4,)))
        )  # fmt: skip
        self.source, self.target = (stream.pinned(self.memory.num_bytes) for _ in range(2))
        self.event = stream.event()

    def fill(self, *values: int) -> None:
        self.memory.array(self.source, "x")[:] = values

    def launch(self) -> None:
        torch.mul(self.memory.tensor("x"), 2, out=self.memory.tensor("y"))

    def upload(self) -> None:
        self.stream.upload(self.source, self.memory.device, self.memory.end_of("x"))

    def download(self) -> None:
        self.stream.download(self.memory.device, self.target, self.memory.num_bytes)
        self.event.record()

    def result(self) -> list[int]:
        return self.memory.array(self.target, "y").tolist()
