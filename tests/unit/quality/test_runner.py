"""Forced logits and greedy answers equal what single steps give; one swapped layer is that layer alone."""

from pathlib import Path

import numpy as np
import pytest

from services.artifacts.artifact import open_artifact
from services.domain.kv_layout import KvFormat
from tests.unit.executors.native_models import load_native
from tests.unit.executors.tiny_models import make_model, save_gguf
from worker.executors.native.build import build
from worker.executors.native.library import Compute
from worker.executors.native_executor import NativeExecutor, NativeOptions
from worker.executors.weights.loader import open_model
from worker.quality.divergence import DivergenceSum
from worker.quality.measure import add_window
from worker.quality.runner import CHUNK, SEQUENCES, Runner

IDS = [int(token) for token in np.random.default_rng(3).integers(1, 60, CHUNK + 30)]
EXACT = {"compute": Compute.F32, "kv_format": KvFormat.F32}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gguf(make_model("llama"), tmp_path_factory.mktemp("quality") / "a.gguf", "Q8_0")


def test_forced_logits_cover_every_position_but_the_last(model: Path, tmp_path: Path) -> None:
    runner = Runner(load_native(model, tmp_path, **EXACT), max_tokens=128)
    pieces = list(runner.forced(IDS))
    assert [len(piece) for piece in pieces] == [CHUNK, 29]
    whole = np.concatenate(pieces)
    # A prefix gives the first rows, bit for bit.
    assert np.array_equal(np.concatenate(list(runner.forced(IDS[:20]))), whole[:19])


def test_answers_are_the_greedy_continuation_and_end_before_a_stop_id(model: Path, tmp_path: Path) -> None:
    runner = Runner(load_native(model, tmp_path, **EXACT), max_tokens=128)
    prompts = [IDS[start : start + 5 + start] for start in range(SEQUENCES + 2)]
    made = runner.answers(prompts, max_tokens=8, stop_ids=frozenset())
    assert [len(ids) for ids in made] == [8] * len(prompts)
    for prompt, ids in zip(prompts, made, strict=True):
        logits = np.concatenate(list(runner.forced([*prompt, *ids])))
        assert logits[len(prompt) - 1 :].argmax(axis=1).tolist() == ids
    stop = made[0][3]
    ends = made[0].index(stop)
    assert runner.answers(prompts[:1], max_tokens=8, stop_ids=frozenset({stop})) == [made[0][:ends]]


def test_a_version_is_no_divergence_from_itself_and_int8_some(model: Path, tmp_path: Path) -> None:
    runners = [
        Runner(load_native(model, tmp_path, **options), max_tokens=128)
        for options in (EXACT, EXACT, {"compute": Compute.INT8, "kv_format": KvFormat.INT8})
    ]
    same, quantised = DivergenceSum(), DivergenceSum()
    add_window(same, runners[0].forced(IDS), runners[1].forced(IDS), IDS)
    add_window(quantised, runners[0].forced(IDS), runners[2].forced(IDS), IDS)
    assert same.result().worst_kl == 0
    assert same.result().num_positions == len(IDS) - 1
    assert 0 < quantised.result().mean_kl < 0.1


def test_a_swapped_layer_changes_what_it_changes_and_nothing_else(model: Path, tmp_path: Path) -> None:
    changed = make_model("llama")
    changed.model.layers[1].mlp.down_proj.weight.data *= 1.5
    other = save_gguf(changed, tmp_path / "b.gguf", "Q8_0")
    version = load_native(other, tmp_path, **EXACT)
    base = Runner(load_native(model, tmp_path, **EXACT), max_tokens=128)

    def mixed(layer: int) -> NativeExecutor:
        artifact = open_artifact(model)
        return NativeExecutor(
            *open_model(artifact),
            build("auto"),
            name="mixed",
            revision=artifact.revision,
            options=NativeOptions(num_threads=1, **EXACT),
            environment={"QUIRE_CACHE": str(tmp_path)},
            layer_of=(layer, version),
        )

    found = []
    for layer in (0, 1):
        part = DivergenceSum()
        add_window(part, base.forced(IDS), Runner(mixed(layer), max_tokens=128).forced(IDS), IDS)
        found.append(part.result().mean_kl)
    assert found[0] == 0
    assert found[1] > 0
