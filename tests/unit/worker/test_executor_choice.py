"""Which executor a worker runs on a CPU, and what it says when it cannot have it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.artifacts.artifact import open_artifact
from services.chassis.fatal import FatalError
from services.domain.kv_layout import KvFormat
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import make_model, save_folder, save_gguf
from tests.unit.worker.choice_settings import config
from worker import executor_choice
from worker.config import ExecutorKind
from worker.executor_choice import open_executor
from worker.executors.native import bound_plan
from worker.executors.native.packed_size import packed_bytes
from worker.executors.native_executor import NativeExecutor
from worker.executors.weights.loader import open_model
from worker.memory import TooLittleMemory
from worker.plan.op import OpKind

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("own_cache")]
"""The first test compiles the library."""

TORCH_BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from worker.config import WorkerConfig
from worker.loading import load, warm_up_batch

loaded = load(WorkerConfig(model="tiny=" + sys.argv[1], kv_memory=1 << 20))
assert loaded.executor.execute(warm_up_batch()).failed.tolist() == [False]
assert not {"torch", "triton"} & set(sys.modules)
print(loaded.executor.profile.executor)
"""


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_choice, "has_module", lambda name: False)


def test_a_worker_starts_natively_without_torch(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TORCH_BLOCKED, str(model)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "native"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are looked at in /proc")
def test_the_engine_has_as_many_threads_as_asked_for(model: Path) -> None:
    def threads() -> set[str]:
        return {path.name for path in Path("/proc/self/task").iterdir()}

    # The first start may start threads of libraries too, which stay.
    for num_threads in (1, 5):
        before = threads()
        opened = open_executor(replace(config(model, ExecutorKind.NATIVE), threads=num_threads))
        added = threads() - before
        assert isinstance(opened.executor, NativeExecutor)
        opened.executor.close()
    assert len(added) == 5


@pytest.mark.usefixtures("no_compiler")
def test_torch_serves_where_there_is_no_compiler_and_that_is_said_once(model: Path) -> None:
    with capture_logs() as logs:
        assert open_executor(config(model)).executor.profile.executor == "torch"
    (line,) = [log for log in logs if log["event"] == "torch_serves_instead_of_native"]
    assert "no g++" in line["because"]


@pytest.mark.usefixtures("no_compiler")
def test_torch_as_a_fallback_serves_float32_kv_and_says_so_once(model: Path) -> None:
    with capture_logs() as logs:
        opened = open_executor(config(model, kv_format=KvFormat.INT8))
    assert opened.executor.profile.executor == "torch"
    (line,) = [log for log in logs if log["event"] == "torch_serves_instead_of_native"]
    assert line["kv_format"] == "f32"
    assert "no g++" in line["because"]


@pytest.mark.usefixtures("no_compiler", "no_torch")
def test_without_compiler_and_torch_one_line_names_both_remedies(model: Path) -> None:
    with pytest.raises(FatalError, match=r"install g\+\+.*pip install 'quire\[torch\]'") as raised:
        open_executor(config(model))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_compiler")
def test_who_asks_for_native_gets_nothing_else(model: Path) -> None:
    with pytest.raises(FatalError, match=r"install g\+\+"):
        open_executor(config(model, ExecutorKind.NATIVE))


def test_torch_serves_a_model_with_an_operation_that_is_lacking(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(bound_plan.OP_KINDS, OpKind.ACT_MUL)
    with capture_logs() as logs:
        assert open_executor(config(model)).executor.profile.executor == "torch"
    assert any("act_mul" in str(log.get("because")) for log in logs)
    with pytest.raises(FatalError, match=r"act_mul.*quire\[torch\].*or serve another model"):
        open_executor(config(model, ExecutorKind.NATIVE))


def test_torch_serves_a_shape_that_is_lacking(tmp_path: Path) -> None:
    narrow = save_folder(make_model("llama", num_attention_heads=8, num_key_value_heads=8), tmp_path)
    with capture_logs() as logs:
        assert open_executor(config(narrow)).executor.profile.executor == "torch"
    assert any("head_dim 8" in str(log.get("because")) for log in logs)


PACKED = Path(__file__).parents[1] / "executors" / "fixtures" / "packed"


@pytest.mark.parametrize(
    "kind", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "awq", "gptq_act_order", "w4a16_asym"]
)
def test_what_weights_will_take_is_known_before_they_are_packed(kind: str, tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "vocab_size": 1000}
    path = PACKED / kind
    if not path.exists():
        path = save_gguf(make_model("llama", **shape), tmp_path / "tiny.gguf", kind)
    built, weights = open_model(open_artifact(path))
    expected = packed_bytes(built.plan, weights)
    executor = load_native(path, tmp_path, max_positions=32)
    rotations = 32 * 4 * executor.plan.head_dim
    # What lies stacked shares the line in front of it.
    assert executor.profile.weight_bytes - rotations == pytest.approx(expected, rel=0.01)


def test_weights_that_do_not_fit_are_refused_before_they_are_packed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_choice, "free_memory_bytes", lambda: 1)
    with pytest.raises(FatalError, match="the weights need about"):
        open_executor(config(model))
    assert not (tmp_path / "cache" / "packed").exists()


@pytest.mark.usefixtures("no_compiler", "no_torch")
@pytest.mark.parametrize("kind", [ExecutorKind.AUTO, ExecutorKind.NATIVE, ExecutorKind.TORCH])
@pytest.mark.parametrize(
    ("kv_memory", "says"),
    [
        (1000, r"no KV page of [\d,]+ bytes fits into 1,000 bytes given: .*--kv-memory"),
        (1 << 50, r"--kv-memory asks for 1,073,741,824 MiB, [\d,]+ MiB are free for it: ask for less"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_before_anything_is_compiled_or_imported(
    model: Path, kind: ExecutorKind, kv_memory: int, says: str
) -> None:
    """Without a compiler and torch nothing long could begin: what is said is about the memory."""
    with pytest.raises(TooLittleMemory, match=says):
        open_executor(config(model, kind, kv_memory=kv_memory))


@pytest.mark.usefixtures("no_compiler", "no_torch")
def test_weights_and_pool_have_to_fit_together(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, weights = open_model(open_artifact(model))
    weight_bytes = packed_bytes(built.plan, weights)
    pool_bytes = 1 << 20
    monkeypatch.setattr(executor_choice, "free_memory_bytes", lambda: weight_bytes + pool_bytes - 1)
    with pytest.raises(TooLittleMemory, match="--kv-memory asks for 1 MiB"):
        open_executor(config(model, ExecutorKind.NATIVE, kv_memory=pool_bytes))
    monkeypatch.setattr(executor_choice, "free_memory_bytes", lambda: weight_bytes + pool_bytes)
    with pytest.raises(FatalError, match="install g"):
        open_executor(config(model, ExecutorKind.NATIVE, kv_memory=pool_bytes))


def test_torch_is_taken_when_asked_for(model: Path) -> None:
    assert open_executor(config(model, ExecutorKind.TORCH)).executor.profile.executor == "torch"


def test_torch_has_no_narrow_kv_and_says_who_has(model: Path) -> None:
    with pytest.raises(FatalError, match="--kv-format int8 with --executor native"):
        open_executor(config(model, ExecutorKind.TORCH, kv_format=KvFormat.INT8))


def test_a_kv_format_that_no_executor_keeps_is_refused_by_name(model: Path) -> None:
    for kind in (ExecutorKind.AUTO, ExecutorKind.NATIVE, ExecutorKind.TORCH):
        with pytest.raises(
            FatalError, match="--kv-format f16: executors on a CPU keep KV in f32, bf16, int8"
        ):
            open_executor(config(model, kind, kv_format=KvFormat.F16))


def test_an_unknown_instruction_set_is_an_error_and_no_reason_for_torch(model: Path) -> None:
    with pytest.raises(FatalError, match="--instruction-set mmx"):
        open_executor(config(model, instruction_set="mmx"))
