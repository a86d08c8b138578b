"""What multiplies with weights of 16 bits is the operator's choice, on a GPU alone, and is said."""

from pathlib import Path

import pytest

from services.chassis.fatal import FatalError
from tests.unit.executors.tiny_models import make_model, save_folder
from worker.config import DenseProducts, WorkerConfig
from worker.devices import Device, DeviceMemory, NoDevice
from worker.executor_choice import open_executor
from worker.memory import MIB


class FakeGpu:
    """A device on which kernels are interpreted."""

    name = "cpu"
    label = "Fake GPU (sm_90)"
    uuid = pci_address = None
    is_amd = False
    compiles = True

    def memory(self) -> DeviceMemory:
        return DeviceMemory(9000 * MIB, 10_000 * MIB)


def no_gpu() -> Device:
    raise NoDevice("there is no GPU here")


@pytest.mark.parametrize("products", DenseProducts)
def test_the_vendors_library_is_taken_where_it_is_asked_for_and_marked(
    products: DenseProducts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # a start sets it: taken back after the test
    monkeypatch.delenv("TRITON_CACHE_DIR")
    model = save_folder(make_model("llama"), tmp_path)
    config = WorkerConfig(model=f"tiny={model}", threads=1, dense_products=products)
    profile = open_executor(config, FakeGpu).executor.profile
    kernels = {use.kernel.partition("_")[0] for use in profile.kernels if use.layer_kind == "o"}
    is_vendors = products is DenseProducts.VENDOR
    assert kernels == {"vendor" if is_vendors else "triton"}
    assert profile.is_batch_invariant != is_vendors


def test_without_a_gpu_it_is_refused_by_name(tmp_path: Path) -> None:
    model = save_folder(make_model("llama"), tmp_path)
    config = WorkerConfig(model=f"tiny={model}", threads=1, dense_products=DenseProducts.VENDOR)
    with pytest.raises(FatalError, match="--dense-products vendor: there is no GPU to use"):
        open_executor(config, no_gpu)
