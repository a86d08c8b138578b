"""`quire quality` as a user runs it: a verdict, an exit code and files; or one line that says why not."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.artifacts.artifact import open_artifact
from services.chassis.fatal import ConfigError
from services.commands.quality import main
from tests.unit.executors.tiny_models import make_model, save_folder
from tests.unit.quantize.test_quantizer import with_tokenizer
from worker.executors.native.build import build
from worker.quality import report
from worker.quality.texts import RECORDED_PROMPTS
from worker.quantize.quantizer import quantize
from worker.quantize.settings import Method, QuantizeSettings

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("own_cache")]
"""The first test compiles the library."""

QUICK = ["--threads", "1", "--positions", "600", "--every-task", "90"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model at 8 bits, with a tokeniser that drops whatever is not ASCII."""
    folder = tmp_path_factory.mktemp("quality")
    source = with_tokenizer(save_folder(make_model("llama", max_position_embeddings=2048), folder / "floats"))
    out = folder / "int8"
    quantize(open_artifact(source), QuantizeSettings(bits=8, group=32, method=Method.RTN), (), out)
    return out


def limits(folder: Path, **values: float) -> Sequence[str]:
    loose = {
        "max_mean_kl": 9, "max_worst_kl": 99, "min_agreement": 0, "max_perplexity_ratio": 99,
        "max_lost_answers": 1, "max_added_repetition": 1,
    }  # fmt: skip
    path = folder / "limits.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in (loose | values).items()))
    return ["--thresholds", str(path)]


def test_a_version_that_holds_the_thresholds_leaves_its_files_and_without_a_verdict_no_zero(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert main([str(model), *QUICK, *limits(tmp_path), "-o", str(out)]) == 3
    assert "no verdict, measured in part only" in capfd.readouterr().out
    (found,) = json.loads((out / "report.json").read_text())
    assert (found["passes"], found["fails"]) == (False, False)
    # The tokeniser reads four kinds of the five; the other one is named, not an error.
    assert set(found["texts"]) == {"prose", "chat", "code", "data"}
    assert "no chinese text" in found["partial"]
    # Its own weights in float32 are the baseline: each layer shows its int8 products.
    assert len(found["layers"]) == 2
    assert all(value > 0 for value in found["layers"])
    assert "mean KL with one layer quantised" in (out / "kl.svg").read_text()
    # Three answers to tasks are looked at too.
    page = (out / "report.md").read_text()
    assert re.search(rf"repetition rate .*\n.*\n\| [^|]+ \| {len(RECORDED_PROMPTS) + 3} \|", page)
    names = {f"outputs-{found['digest'][:12]}-{label}.jsonl" for label in ("version", "baseline")}
    assert {path.name for path in out.iterdir()} == {"report.json", "report.md", "kl.svg", *names}
    for name in names:
        first, *prompts = [json.loads(line) for line in (out / name).read_text().splitlines()]
        assert first == {"digest": found["digest"]}
        assert [line["prompt"] for line in prompts] == list(RECORDED_PROMPTS)


def test_a_version_that_holds_the_thresholds_over_enough_exits_with_zero(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "gaps", lambda measured: [])
    words = [str(model), "--threads", "1", "--positions", "100", "--every-task", "0"]
    assert main([*words, *limits(tmp_path)]) == 0


def test_a_version_beyond_a_threshold_exits_with_one(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [str(model), "--threads", "1", "--positions", "100", "--every-task", "0", "--json"]
    assert main([*words, *limits(tmp_path, max_mean_kl=0)]) == 1
    (found,) = json.loads(capfd.readouterr().out)
    assert [check["name"] for check in found["checks"] if not check["holds"]] == ["mean KL"]
    # With its weights, all that decides the digest.
    settings = {"compute": "int8", "kv": "int8", "instruction set": build().instruction_set}
    assert found["settings"] == settings | {"baseline": "its own weights in float32"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--positions", "1", "--every-task", "0"], "ask for more --positions"),
        (["--positions", "0"], "--positions 0: must be at least 1"),
        (["--every-task", "-1"], "--every-task -1: must be at least 0"),
    ],
)
def test_what_cannot_be_measured_is_one_line(model: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        main([str(model), "--threads", "1", *words])
    assert "\n" not in str(caught.value)
