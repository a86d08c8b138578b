"""When a worker takes the GPU, what it says where it cannot, and how its pool is sized there."""

from pathlib import Path

import pytest
import triton
from structlog.testing import capture_logs

from services.artifacts.artifact import open_artifact
from services.artifacts.tensors import TensorRef
from services.chassis.fatal import FatalError
from services.domain.kv_layout import KvFormat
from tests.fakes.launch_recorder import LaunchRecorder
from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf
from tests.unit.worker.choice_settings import config
from worker.config import ExecutorKind
from worker.devices import Device, DeviceMemory, NoDevice, UnusableDevice
from worker.executor_choice import open_executor
from worker.executors.weights.gpu_size import least_bytes
from worker.executors.weights.loader import open_model
from worker.kernels import linear_tuning, paged_attention_tuning
from worker.kernels.aot import CHIPS
from worker.loading import load, warm_up_batch
from worker.memory import MIB

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("own_cache")]


class FakeGpu:
    """A device whose driver says what it is told; kernels on it are interpreted."""

    name = "cpu"
    label = "Fake GPU (sm_90)"
    uuid = pci_address = None
    is_amd = False
    compiles = True

    def __init__(self, *free_mib: int) -> None:
        self._free = list(free_mib)

    def memory(self) -> DeviceMemory:
        """Return the next figure; the last one stays."""
        free = self._free.pop(0) if len(self._free) > 1 else self._free[0]
        return DeviceMemory(free * MIB, 10_000 * MIB)


def no_gpu() -> Device:
    raise NoDevice("there is no GPU here")


def unusable_gpu() -> Device:
    raise UnusableDevice("there is a GPU here, but no triton")


def test_a_gpu_is_taken_where_there_is_one_and_never_when_another_is_asked_for(model: Path) -> None:
    gpu = FakeGpu(9000)
    with capture_logs() as logs:
        opened = open_executor(config(model), lambda: gpu)
    (said,) = [log for log in logs if log["event"] == "computing_on_a_gpu"]
    assert said["device"] == gpu.label
    assert said["linear_tiles"] == linear_tuning.label(CHIPS[0])
    assert said["attention_tiles"] == paged_attention_tuning.label(CHIPS[0])
    assert opened.executor.profile.executor == "triton"
    assert opened.on is not None
    assert (opened.on.device, opened.on.free_before) == (gpu, 9000 * MIB)
    for kind in (ExecutorKind.NATIVE, ExecutorKind.TORCH):
        other = open_executor(config(model, kind), lambda: gpu)
        assert (other.executor.profile.executor, other.on) == (kind, None)


def test_without_a_gpu_auto_says_nothing_and_one_that_cannot_be_used_is_said_once(model: Path) -> None:
    for find, expected in ((no_gpu, []), (unusable_gpu, ["there is a GPU here, but no triton"])):
        with capture_logs() as logs:
            assert open_executor(config(model), find).executor.profile.executor == "native"
        assert [log["because"] for log in logs if log["event"] == "gpu_not_used"] == expected


def test_who_asks_for_triton_without_a_gpu_is_told_why_and_what_else_there_is(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    for find in (no_gpu, unusable_gpu):
        with pytest.raises(FatalError, match=r"--executor triton: there is .*; or take --executor native"):
            open_executor(config(model, ExecutorKind.TRITON), find)


def test_weights_that_do_not_fit_on_the_device_are_refused_before_they_are_read(model: Path) -> None:
    with pytest.raises(FatalError, match="the weights need about 0 MiB, 0 MiB are free"):
        open_executor(config(model), lambda: FakeGpu(0))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pool_that_does_not_fit_on_the_device_is_refused_before_weights_are_read(
    model: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unread in ("to_float32", "to_codes"):
        monkeypatch.delattr(TensorRef, unread, raising=False)
    for kv_memory, says in ((100, "fits into 100 bytes given"), (9001 * MIB, "MiB are free for it")):
        settings = config(model, kv_memory=kv_memory, tensor_parallel_size=ranks)
        with pytest.raises(FatalError, match=says):
            open_executor(settings, lambda: FakeGpu(9000))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_what_weights_take_on_a_gpu_is_never_less_than_said(kind: str, tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "vocab_size": 1000}
    path = save_gguf(make_model("llama", **shape), tmp_path / "tiny.gguf", kind)
    built, weights = open_model(open_artifact(path))
    least = least_bytes(built.plan, weights)
    taken = open_executor(config(path, kv_format=KvFormat.F16), lambda: FakeGpu(9000)).executor.profile
    rotations = 4 * built.config.max_positions * built.plan.head_dim
    # Offsets of Q4_1 are no whole zero points: it becomes floats, which only its numbers say.
    tolerance = 0.75 if kind == "Q4_1" else 0.02
    assert (1 - tolerance) * (taken.weight_bytes - rotations) < least <= taken.weight_bytes


class RealGpu(FakeGpu):
    """One on which kernels would be compiled."""

    name = "cuda:0"


def test_a_gpu_keeps_no_f32(tmp_path: Path) -> None:
    model = save_folder(make_model("llama", head_dim=64), tmp_path)
    with pytest.raises(FatalError, match="--kv-format f32: a GPU keeps KV in bf16, f16 or int8"):
        open_executor(config(model, kv_format=KvFormat.F32), lambda: RealGpu(9000))


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            {"head_dim": 192},
            "heads of 192 numbers: attention on a GPU has tiles for 64, 80, 96, 128, 256 alone",
        ),
        (
            {"head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 1},
            "64 query heads share a key-value head: attention on a GPU has tiles for at most 32",
        ),
    ],
)
def test_heads_that_attention_has_no_tiles_for_are_refused_by_name(
    shape: dict[str, int], says: str, tmp_path: Path
) -> None:
    model = save_folder(make_model("llama", **shape), tmp_path)
    with pytest.raises(FatalError, match=f"{says}; take --executor native"):
        open_executor(config(model), lambda: RealGpu(9000))


def test_the_pool_on_a_gpu_is_what_a_warm_up_leaves_and_its_progress_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free 9,000, loaded 8,900, after the largest steps 8,700: of 10,000 MiB a twentieth is kept."""
    compiler = LaunchRecorder(monkeypatch)
    model = save_folder(make_model("llama", vocab_size=208, num_hidden_layers=1), tmp_path)
    limits = {"max_sequences": 2, "max_step_tokens": 6, "max_prefill_tokens": 4, "max_context_tokens": 64}
    settings = config(model, kv_format=KvFormat.F32, **limits)
    with capture_logs() as logs:
        loaded = load(settings, lambda one: open_executor(one, lambda: FakeGpu(9000, 8900, 8700)))
    assert loaded.pool.num_pages == 2 * 64 // 16, "nothing could use more"
    (line,) = [log for log in logs if log["event"] == "kv_pool_sized"]
    assert (
        "(9,000 of 10,000 MiB free on Fake GPU (sm_90) - 100 weights - 200 largest step (6 tokens)"
        " - 512 reserve = 8,188 MiB), at most 8 pages"
    ) in line["arithmetic"]
    counts = [(log["done"], log["of"]) for log in logs if log["event"] == "warming_up"]
    assert counts == [(i + 1, len(counts)) for i in range(len(counts))]
    assert len(counts) > 2
    assert triton.knobs.cache.dir == str(tmp_path / "cache" / "triton"), "a restart compiles nothing"
    compiled = set(compiler.keys)
    loaded.executor.execute(warm_up_batch())
    assert compiled
    assert compiler.keys == compiled


def test_an_interpreted_model_loads_without_a_warm_up_and_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_folder(
        make_model("llama", vocab_size=208, intermediate_size=64, num_hidden_layers=1), tmp_path
    )
    limits = {"max_sequences": 1, "max_step_tokens": 2, "max_prefill_tokens": 2, "max_context_tokens": 32}
    with capture_logs() as logs:
        loaded = load(config(model, ExecutorKind.TRITON, kv_format=KvFormat.F32, **limits))
    assert [log["event"] for log in logs if "done" in log or "interpreted" in log["event"]] == [
        "kernels_are_interpreted",
        *["warming_up"] * 2,
    ]
    assert loaded.executor.execute(warm_up_batch()).failed.tolist() == [False]
    assert loaded.device is not None
    assert loaded.device.name == "cpu"
