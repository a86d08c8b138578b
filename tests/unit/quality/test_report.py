"""Thresholds, verdicts and what is written of them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from worker.quality import picture, report
from worker.quality.divergence import Divergence
from worker.quality.measure import KindScore, Measured
from worker.quality.tasks import TaskKind
from worker.quality.verdict import Thresholds, gaps, judge, read_thresholds


def measured(
    mean_kl: float = 0.005, agreement: float = 0.97, right: int = 20, num_positions: int = 20_000
) -> Measured:
    part = Divergence(
        num_positions=num_positions,
        mean_kl=mean_kl,
        worst_kl=0.4,
        agreement=agreement,
        perplexity=10.05,
        baseline_perplexity=10.0,
    )
    scores = [KindScore(TaskKind.FACTS, 48, right, 20), KindScore(TaskKind.CODE, 48, 0, 5)]
    return Measured(texts={"prose": part}, overall=part, scores=scores, layers=[0.001, 0.002])


def version(found: Measured) -> report.Version:
    return report.Version(
        name="a|b",
        digest="d" * 32,
        settings={"kv": "int8"},
        measured=found,
        checks=judge(found, Thresholds()),
    )


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (measured(), []),
        (measured(mean_kl=0.011), ["mean KL"]),
        (measured(mean_kl=float("nan")), ["mean KL"]),
        (measured(agreement=0.94), ["top-1 agreement"]),
        (measured(right=18), ["lost answers"]),
    ],
)
def test_each_threshold_can_fail_alone(found: Measured, failing: list[str]) -> None:
    assert [check.name for check in judge(found, Thresholds()) if not check.holds] == failing


def test_a_kind_that_the_baseline_cannot_do_decides_nothing() -> None:
    facts, code = measured(right=20).scores
    assert facts.counts
    assert not code.counts  # 5 of 48: all of them lost, and still no verdict.


def whole(**changes: float) -> Measured:
    """Enough text and tasks for a verdict on the whole model."""
    found = measured(**changes)  # type: ignore[arg-type]
    found.scores = [KindScore(TaskKind.FACTS, 200, 100, 100)]
    return found


def test_a_verdict_on_too_little_says_what_is_lacking() -> None:
    assert version(whole()).verdict == "passes"
    assert version(whole(mean_kl=0.5)).verdict == "FAILS"
    little = measured(num_positions=500)
    little.left_out = ["chinese"]
    lacking = ["500 of 20,000 positions", "no chinese text", "48 of 200 tasks that count"]
    assert gaps(little) == lacking
    part_only = f", measured in part only: {'; '.join(lacking)}"
    assert version(little).verdict == f"no verdict{part_only}"
    assert "no verdict, measured in part only" in report.markdown([version(little)], None)
    (found,) = json.loads(report.as_json([version(little)]))
    assert (found["passes"], found["fails"], found["partial"]) == (False, False, lacking)
    # What fails over little text fails.
    bad = measured(mean_kl=0.5, num_positions=500)
    assert version(bad).verdict.startswith("FAILS, measured in part only: 500 of")


def test_repetition_stands_beside_that_of_the_baseline() -> None:
    found = measured()
    found.outputs, found.baseline_outputs = [("Hi", [7] * 8)], [("Hi", [7, 7, 7, 7, 7, 8, 9, 1])]
    (rows,) = [rows for title, _, rows in report.tables([version(found)]) if title == "Repetition"]
    assert rows == [["a|b", "1", "0.8000", "0.2000"]]
    assert "| 0.8000 | 0.2000 |" in report.markdown([version(found)], None)


def test_repetition_is_looked_for_in_answers_to_tasks_too() -> None:
    found, once = measured(), list(range(8))
    found.outputs, found.baseline_outputs = [("Hi", [7] * 8)], [("Hi", once)]
    assert "added repetition" in [check.name for check in judge(found, Thresholds()) if not check.holds]
    found.answers, found.baseline_answers = [once] * 19, [once] * 19
    assert (found.repetition, found.num_answers) == (pytest.approx(0.8 / 20), 20)
    assert all(check.holds for check in judge(found, Thresholds()))
    found.answers[:1] = [[7] * 8]
    assert "added repetition" in [check.name for check in judge(found, Thresholds()) if not check.holds]


def test_thresholds_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("max_mean_kl = 0.02\n")
    assert read_thresholds(path) == Thresholds(max_mean_kl=0.02)
    assert read_thresholds(None) == Thresholds()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_kl = 1", "unknown threshold max_kl"),
        ("max_mean_kl = 'low'", "max_mean_kl must be a number"),
        ("max_mean_kl = true", "max_mean_kl must be a number"),
        ("=", "cannot be read"),
    ],
)
def test_a_bad_threshold_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        read_thresholds(path)
    assert str(path) in str(caught.value)


def test_markdown_and_json_say_the_same() -> None:
    good, bad = version(whole()), version(whole(mean_kl=0.5))
    page = report.markdown([good, bad], "kl.svg")
    assert "passes" in page
    assert "FAILS" in page
    assert "![KL by layer" in page
    assert "a\\|b" in page  # A bar in a name must not break the table.
    found = json.loads(report.as_json([good, bad]))
    assert [one["passes"] for one in found] == [True, False]
    assert found[0]["texts"]["prose"]["mean_kl"] == 0.005


def test_recorded_outputs_are_one_line_a_prompt() -> None:
    text = report.outputs_text("abc", [("Hi", [1, 2]), ("Ho", [])], lambda ids: "x" * len(ids))
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0] == {"digest": "abc"}
    assert lines[1] == {"prompt": "Hi", "text": "xx", "ids": [1, 2]}
    assert len(lines) == 3


def test_the_picture_is_valid_and_has_every_bar() -> None:
    svg = picture.draw(
        {"a<b": {"prose": 0.1, "code": 0.2}, "c": {"prose": 0.0, "code": 0.0}}, {"a<b": [0.1] * 30}
    )
    root = ElementTree.fromstring(svg)
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2 * 2 + 30
    assert "a<b code: 0.20000" in titles
