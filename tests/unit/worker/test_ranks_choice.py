"""What a worker of several ranks is made of, and what it says when it cannot be had."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.artifacts.artifact import ModelArtifact
from services.chassis.fatal import FatalError
from services.domain.kv_layout import KvFormat
from tests.unit.executors.tiny_models import make_model, save_folder
from worker import executor_choice
from worker.config import DenseProducts, ExecutorKind, WorkerConfig
from worker.devices import Device, DeviceMemory, NoDevice
from worker.executor_choice import open_executor
from worker.executors.ranks.messages import RankSpec
from worker.executors.sim import SimConfig, SimExecutor
from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.aot import CHIPS

pytestmark = pytest.mark.timeout(600)


class Gpu:
    """One of several; only its memory is asked for."""

    label = "Fake GPU (sm_90)"
    uuid = pci_address = None
    is_amd = False

    def __init__(self, index: int = 0) -> None:
        self.name = f"cuda:{index}"

    def memory(self) -> DeviceMemory:
        return DeviceMemory(1 << 30, 1 << 30)

    def peer(self, rank: int) -> "Gpu":
        return Gpu(rank)


def no_gpu() -> Device:
    raise NoDevice("there is no GPU here")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(make_model("llama", head_dim=64), tmp_path_factory.mktemp("model"))


def config(model: Path, kind: ExecutorKind, size: int = 2) -> WorkerConfig:
    return WorkerConfig(model=f"tiny={model}", executor=kind, threads=1, tensor_parallel_size=size)


def spec_for(monkeypatch: pytest.MonkeyPatch, settings: WorkerConfig, find: Callable[[], Device]) -> RankSpec:
    """Return what rank 0 would be, without starting any."""
    seen: list[RankSpec] = []

    def load_group(artifact: ModelArtifact, spec: RankSpec) -> SimExecutor:
        seen.append(spec)
        return SimExecutor(SimConfig())

    monkeypatch.setattr(executor_choice, "load_group", load_group)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    with capture_logs() as logs:
        opened = open_executor(settings, find)
    for line in (log for log in logs if log["event"] == "computing_on_gpus"):
        chip = "sm_90" if line["device"] == Gpu.label else CHIPS[0]
        assert line["linear_tiles"] == linear_tuning.label(chip)
        assert line["attention_tiles"] == paged_attention_tuning.label(chip)
    on = opened.on
    assert on is None or [peer.name for peer in on.peers] == [
        "cuda:1" if on.device.name == "cuda:0" else "cpu"
    ]
    return seen[0]


def test_ranks_compute_on_gpus_where_there_are_and_else_in_torch(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, find, executor, device in (
        (ExecutorKind.AUTO, Gpu, "triton", "cuda"),
        (ExecutorKind.AUTO, no_gpu, "torch", "cpu"),
        (ExecutorKind.TORCH, Gpu, "torch", "cpu"),
        (ExecutorKind.TRITON, no_gpu, "triton", "cpu"),  # interpreted
    ):
        spec = spec_for(monkeypatch, config(model, kind), find)
        assert (spec.executor, spec.device, spec.rank, spec.size) == (executor, device, 0, 2)
        assert spec.kv_format == (KvFormat.INT8 if executor == "triton" else KvFormat.F32)
        assert not spec.vendor_products


def test_ranks_refuse_heads_that_attention_has_no_tiles_for(tmp_path: Path) -> None:
    model = save_folder(make_model("llama", head_dim=192), tmp_path)
    with pytest.raises(FatalError, match="heads of 192 numbers: attention on a GPU has tiles for 64, 80,"):
        open_executor(config(model, ExecutorKind.AUTO), Gpu)


def test_every_rank_takes_the_vendors_library_where_it_is_asked_for(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(config(model, ExecutorKind.AUTO), dense_products=DenseProducts.VENDOR)
    assert spec_for(monkeypatch, settings, Gpu).vendor_products


def test_fewer_gpus_than_ranks_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.executors import triton_device

    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(FatalError, match="2 ranks need 2 GPUs, 1 are visible: lower --tensor-parallel-size"):
        triton_device.device_of_rank(0, 2)


def test_ranks_that_a_model_does_not_divide_over_are_refused_by_name(model: Path) -> None:
    with pytest.raises(FatalError, match="--tensor-parallel-size 3: 4 query heads do not divide by 3 ranks"):
        open_executor(config(model, ExecutorKind.TORCH, 3))
