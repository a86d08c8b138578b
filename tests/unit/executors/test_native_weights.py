"""Weights are packed once; later starts map what is on the disk, unless it is not what was written."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from services.artifacts.artifact import open_artifact
from services.chassis.fatal import FatalError
from tests.unit.executors.batches import Part, logits_of
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import VOCAB, make_model, save_folder, save_gguf
from worker.executors.native.build import build
from worker.executors.native.library import Library, WeightKind
from worker.executors.native.packed_weights import PackedWeights, narrowest_kind, open_packed
from worker.executors.native_executor import NativeExecutor
from worker.executors.weights.loader import WeightSource, open_model

pytestmark = pytest.mark.timeout(600)
"""The first test compiles the library."""

IDS = np.random.default_rng(0).integers(0, VOCAB, 20).tolist()


def logits(executor: NativeExecutor) -> NDArray[np.float32]:
    executor.allocate(2)
    return logits_of(executor, [Part(IDS, 0, [0, 1])])


def packed_file(cache: Path) -> Path:
    (found,) = (cache / "packed").glob("*.bin")
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_folder(make_model("llama"), tmp_path / "model")


def test_a_second_start_reads_no_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logits(load_native(model, tmp_path))
    monkeypatch.setattr(WeightSource, "read", None)
    monkeypatch.setattr(WeightSource, "read_quantized", None)
    assert np.array_equal(logits(load_native(model, tmp_path)), first)


def truncate(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1000)


def flip_a_bit(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(5000)
        byte = opened.read(1)
        opened.seek(5000)
        opened.write(bytes([byte[0] ^ 1]))


def flip_a_bit_and_keep_the_time(file: Path) -> None:
    before = file.stat()
    flip_a_bit(file)
    # The file system's clock ticks every few milliseconds: this may still be the tick of the packing.
    while file.stat().st_ctime_ns == before.st_ctime_ns or file.stat().st_mtime_ns != before.st_mtime_ns:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def lose_the_marker(file: Path) -> None:
    file.with_suffix(".json").unlink()


def break_the_marker(file: Path) -> None:
    file.with_suffix(".json").write_text('{"size": 1')


def lose_the_file(file: Path) -> None:
    file.unlink()


def test_packing_shows_how_far_it_is(model: Path, tmp_path: Path) -> None:
    with capture_logs() as logs:
        load_native(model, tmp_path / "shown")
        load_native(model, tmp_path / "shown")
    shown = [(log["number"], log["of"]) for log in logs if log["event"] == "packing_layer"]
    assert shown == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    "damage",
    [truncate, flip_a_bit, flip_a_bit_and_keep_the_time, lose_the_marker, break_the_marker, lose_the_file],
    ids=lambda f: f.__name__,
)
def test_a_damaged_file_is_packed_again(model: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    first = logits(load_native(model, tmp_path))
    file = packed_file(tmp_path)
    content = file.read_bytes()
    damage(file)
    assert np.array_equal(logits(load_native(model, tmp_path)), first)
    assert packed_file(tmp_path).read_bytes() == content
    assert not [path for path in file.parent.iterdir() if "partial" in path.name]


def test_a_file_that_was_only_touched_is_not_packed_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_native(model, tmp_path)
    os.utime(packed_file(tmp_path), (0, 0))
    monkeypatch.setattr(WeightSource, "read", None)
    load_native(model, tmp_path)


def test_workers_that_start_together_pack_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, names = WeightSource.read, []

    def counted(self: WeightSource, name: str) -> NDArray[np.float32]:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(WeightSource, "read", counted)
    with ThreadPoolExecutor(4) as pool:
        executors = list(pool.map(lambda _: load_native(model, tmp_path), range(4)))
    assert len(names) == len(set(names))
    assert len({logits(executor).tobytes() for executor in executors}) == 1


def open_as(path: Path, cache: Path, key: str) -> PackedWeights:
    model, weights = open_model(open_artifact(path))
    return open_packed(
        Library(build().path), model.plan, weights, key=key, environment={"QUIRE_CACHE": str(cache)}
    )


def test_what_an_older_build_packed_is_removed(model: Path, tmp_path: Path) -> None:
    open_as(model, tmp_path, "revision-avx2-old")
    open_as(model, tmp_path, "revision-portable-old")
    open_as(model, tmp_path, "another-avx2-old")
    open_as(model, tmp_path, "revision-avx2-new")
    left = sorted(path.stem for path in (tmp_path / "packed").glob("*.bin"))
    assert [stem.rsplit("-", 1)[0] for stem in left] == [
        "another-avx2-old",
        "revision-avx2-new",
        "revision-portable-old",
    ]


def test_matrices_of_one_product_and_format_are_stacked(tmp_path: Path) -> None:
    path = save_gguf(make_model("llama"), tmp_path / "a.gguf", "Q8_0", {"v_proj": "F16", "up_proj": "Q4_0"})
    packed = open_as(path, tmp_path, "a-b-c")
    names = [f"layers.0.{role}" for role in ("q", "k", "v")]
    assert [WeightKind(weight.kind).name for weight, _ in packed.find(names)] == ["U8", "U8", "F16"]
    assert [weight.kind for weight, _ in packed.find(["layers.0.gate", "layers.0.up"])] == [
        WeightKind.U8,
        WeightKind.U4,
    ]
    path = save_gguf(make_model("llama"), tmp_path / "b.gguf", "Q8_0")
    ((stacked, _),) = open_as(path, tmp_path, "d-b-c").find(names)
    assert (stacked.rows, stacked.cols, stacked.group) == (128, 64, 32)


def test_a_cache_that_cannot_be_written_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").write_text("a file")
    with pytest.raises(FatalError, match=r"packed cannot be written .*QUIRE_CACHE"):
        load_native(model, tmp_path)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, -0.5, 3e38, 0.0], WeightKind.F32),
        ([1.0, -0.5, 0.0, 2.0**120], WeightKind.BF16),
        ([1.0, 1.0009765625], WeightKind.F16),
        ([1e-9, 1.0009765625], WeightKind.F32),
        ([70000.0], WeightKind.F32),
    ],
)
def test_floats_are_narrowed_only_where_all_stay_exact(values: list[float], kind: WeightKind) -> None:
    assert narrowest_kind(np.array([values], np.float32)) is kind
