"""The cache of fetched models: what is damaged, full or half fetched is said in one line, or mended."""

import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from wheel_builders import CONTENT, one_line

from services.artifacts import model_cache
from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import list_models, pull, resolve
from services.artifacts.model_cache import MARKER, cache_folder, fetch_once, write_marker


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


def test_damage_that_keeps_size_and_modification_time_is_refused(cache: Path) -> None:
    path = pull("tiny", cache)
    fetched = path.stat()
    path.write_bytes(CONTENT[:-2] + bytes(byte ^ 1 for byte in CONTENT[-2:]))
    # The file system's clock ticks every few milliseconds: this may still be the tick of the fetch.
    while path.stat().st_ctime_ns == fetched.st_ctime_ns or path.stat().st_mtime_ns != fetched.st_mtime_ns:
        os.utime(path, ns=(fetched.st_atime_ns, fetched.st_mtime_ns))

    with pytest.raises(ArtifactError, match=r"m\.gguf: damaged, its SHA-256"):
        resolve("tiny", cache)


def test_a_marker_without_ctime_is_hashed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("tiny", cache)
    marker = path.parent / MARKER
    entries = json.loads(marker.read_bytes())
    for entry in entries.values():
        del entry["ctime_ns"]
    marker.write_text(json.dumps(entries))
    assert resolve("tiny", cache) == path

    monkeypatch.setattr(model_cache, "hash_file", None)
    assert resolve("tiny", cache) == path


def test_a_vanished_file_is_refused(cache: Path) -> None:
    pull("tiny", cache).unlink()

    with pytest.raises(ArtifactError, match="damaged"):
        resolve("tiny", cache)


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


def test_the_cache_folder_follows_the_environment() -> None:
    assert cache_folder({"QUIRE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/quire")
    assert cache_folder({}) == Path.home() / ".cache" / "quire"
