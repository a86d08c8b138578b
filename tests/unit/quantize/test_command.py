"""`quire quantize` as a user runs it: a folder that can be served, or one line that says what is wrong."""

import json
from pathlib import Path

import pytest

from services.artifacts.artifact import open_artifact
from services.chassis.fatal import FatalError
from services.commands.quantize import main
from tests.unit.executors.tiny_models import make_model, save_folder
from tests.unit.quantize.test_quantizer import with_tokenizer
from worker.executors.weights.loader import open_model

TEXTS = {
    "documents": ["ABCDEF" * 30],
    "questions": ["ABC"],
    "conversations": [[{"role": "user", "content": "AB"}, {"role": "assistant", "content": "CD"}]],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return with_tokenizer(save_folder(make_model("llama"), tmp_path / "model"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


def test_a_model_is_quantised_layer_by_layer_with_progress(
    tmp_path: Path, source: Path, texts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--to", "int4", "--group", "32", "--calibration", str(texts), "--json", "-o", str(out)]
    assert main([str(source), *words]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["layer", "layer", "done"]
    assert set(lines[0]["errors"]) == {
        f"layers.0.{role}" for role in ("q", "k", "v", "o", "gate", "up", "down")
    }
    _, weights = open_model(open_artifact(out))
    matrix = weights.read_quantized("layers.1.down")
    assert matrix is not None
    assert matrix.bits == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "int4", "--group", "48"], "--group 48: choose one of 32, 64, 128"),
        (["--to", "int4", "--group", "128"], r"--group 128: tensor .*q_proj\.weight has 64 columns"),
        (["--to", "int8", "--static-activations"], "--static-activations: needs --calibration FILE"),
        (
            ["--to", "int8", "--calibration", "texts.json"],
            "--calibration: --method rtn does not look at text",
        ),
        (["--to", "int4", "--calibration", "nowhere.json"], r"nowhere\.json: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, source: Path, words: list[str], message: str
) -> None:
    group = [] if "--group" in words else ["--group", "32"]
    with pytest.raises(FatalError, match=message) as caught:
        main([str(source), *words, *group, "-o", str(tmp_path / "out")])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
