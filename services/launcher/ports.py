"""Where the processes of a suite listen on their machine, and where those who look for them ask. Pure.

Knows numbers; knows nothing of processes or of who is there.
"""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of one suite; `offset` moves them together."""

    offset: int = 0

    @property
    def gateway(self) -> int:
        return 50051 + self.offset

    @property
    def http(self) -> int:
        return 8000 + self.offset

    @property
    def scheduler(self) -> int:
        return 50052 + self.offset

    @property
    def kvmanager(self) -> int:
        return 50053 + self.offset

    @property
    def admin(self) -> int:
        return 50054 + self.offset

    @property
    def certificate(self) -> int:
        return 50055 + self.offset

    @property
    def redis(self) -> int:
        return 6390 + self.offset

    def worker(self, index: int) -> int:
        return 50060 + self.offset + index

    def gateway_probe(self) -> int:
        return 9100 + self.offset

    def scheduler_probe(self) -> int:
        return 9101 + self.offset

    def kvmanager_probe(self) -> int:
        return 9102 + self.offset

    def worker_probe(self, index: int) -> int:
        return 9110 + self.offset + index
