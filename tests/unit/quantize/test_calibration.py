"""Calibration files say in one line what is wrong with them; ours has all that it should."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from services.artifacts.artifact import open_artifact
from worker.quantize.calibration import MAX_TOKENS, our_calibration, read_calibration, tokenise
from worker.quantize.errors import QuantizeError

TURNS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
GOOD: dict[str, Any] = {"documents": ["A text."], "questions": ["Why?"], "conversations": [TURNS]}


def test_ours_has_three_kinds_with_code_chinese_and_numbers() -> None:
    text = our_calibration()
    assert len(text.documents) >= 6
    assert len(text.questions) >= 20
    assert len(text.conversations) >= 6
    assert min(map(len, text.documents)) > 500
    everything = "\n".join((*text.documents, *text.questions))
    assert re.search(r"[\u4e00-\u9fff]{20}", everything)
    assert "def " in everything
    assert len(re.findall(r"\d+", everything)) > 200


def test_documents_are_cut_and_talks_go_through_the_template(model_path: Path) -> None:
    artifact = open_artifact(model_path)
    text = our_calibration()
    sequences = tokenise(text, artifact)
    assert max(map(len, sequences)) == MAX_TOKENS
    assert 8_000 < sum(map(len, sequences)) < 20_000
    talks = sequences[-len(text.questions) - len(text.conversations) :]
    (start,) = artifact.tokenizer.encode_rendered("<|im_start|>")
    assert {ids[0] for ids in talks} == {start}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"questions": None}, "questions must be a list"),
        ({"documents": []}, "documents must be a list that is not empty"),
        ({"documents": ["a", " "]}, r"documents\[1\] must be a text"),
        ({"questions": [7]}, r"questions\[0\] must be a text"),
        ({"conversations": [TURNS, TURNS[:1]]}, r"conversations\[1\] must be a list of two turns"),
        ({"conversations": [[{"role": "bot", "content": "x"}, *TURNS]]}, r"\[0\]\[0\]\.role must be one of"),
        (
            {"conversations": [[*TURNS, {"role": "user", "content": 1}]]},
            r"\[0\]\[2\]\.content must be a text",
        ),
        ({"extra": []}, "needs exactly the fields documents, questions, conversations, found"),
    ],
)
def test_a_damaged_file_is_refused_by_its_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(QuantizeError, match=rf"texts\.json: .*{message}"):
        read_calibration(path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", None])
def test_what_is_no_text_or_no_json_or_not_there_names_the_file(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "texts.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(QuantizeError, match=r"texts\.json: (is not JSON|cannot be read)"):
        read_calibration(path)
