"""A worker that computes on a device tries to tell its metrics; one that does not never asks."""

from structlog.testing import capture_logs

from tests.integration.worker_bench import running_worker
from worker.devices import DeviceMemory


class UnknownGpu:
    """A device that no management library knows."""

    name, label, uuid, compiles = "cuda:0", "Fake GPU (sm_90)", "GPU-of-nobody", True
    is_amd, pci_address = False, None

    def memory(self) -> DeviceMemory:
        return DeviceMemory(0, 0)


async def test_a_device_without_metrics_is_said_once_and_serves() -> None:
    for device, said in ((UnknownGpu(), 1), (None, 0)):
        with capture_logs() as logs:
            async with running_worker(device=device) as worker:
                assert (await worker.status()).total_pages == 256
        assert sum(log["event"] == "no_gpu_metrics" for log in logs) == said
